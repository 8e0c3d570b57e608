"""What goes wrong, as the daemon says it: a code, a reason, a sentence and named values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS_KEY = "grpc-status-details-bin"
CALL_DEADLINE = "CALL_DEADLINE"


class PenstockError(Exception):
    """A refusal or a failure.

    Attributes:
        code: the gRPC status code, for example ``grpc.StatusCode.NOT_FOUND``.
        reason: the machine-readable reason, for example ``"HANDLE_EXPIRED"``; ``""`` if the transport failed.
        message: one sentence for people.
        values: named facts; bad input names at least ``field`` and ``value``, failed work ``stage``,
            ``micro_batch`` and ``action``.
        violations: every wrong field as (field, description), where the daemon found several.
        retry_delay: seconds after which to ask again, if the daemon said so.
    """

    @property
    def request_id(self) -> str:
        """Of the call, if it has one. The same call with this ``request_id`` asks for the first one's result: nothing
        is applied twice."""
        return self.values.get("request_id", "")

    @property
    def in_doubt(self) -> bool:
        """Whether the daemon did not answer: it may have accepted the call all the same."""
        return not self.reason or self.reason == CALL_DEADLINE

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        values: Mapping[str, str] | None = None,
        violations: Sequence[tuple[str, str]] = (),
        retry_delay: float | None = None,
    ) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.values = dict(values or {})
        self.violations = list(violations)
        self.retry_delay = retry_delay
        super().__init__(f"{code.name} / {reason}: {message}" if reason else f"{code.name}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Goes to other processes whole."""
        return type(self), (self.code, self.reason, self.message, self.values, self.violations, self.retry_delay)

    @classmethod
    def from_status(cls, status: status_pb2.Status) -> PenstockError:
        """The error of a ``google.rpc.Status``, as handles and answers per name carry it."""
        reason = ""
        values: Mapping[str, str] = {}
        violations = []
        retry_delay = None
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            bad_request = error_details_pb2.BadRequest()
            retry = error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                reason, values = info.reason, dict(info.metadata)
            elif detail.Unpack(bad_request):
                violations = [(v.field, v.description) for v in bad_request.field_violations]
            elif detail.Unpack(retry):
                retry_delay = retry.retry_delay.ToTimedelta().total_seconds()
        code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
        return cls(code, reason, status.message, values, violations, retry_delay)

    @classmethod
    def from_call(cls, error: Any, address: str = "") -> PenstockError:
        """The error of a failed gRPC call to ``address``: its details if it has any, else what the transport said."""
        pushback = None
        for key, value in error.trailing_metadata() or ():
            if key == _DETAILS_KEY:
                status = status_pb2.Status()
                status.ParseFromString(value)
                return cls.from_status(status)
            if key == "grpc-retry-pushback-ms" and value.isdigit():
                pushback = int(value) / 1000
        said = error.details() or ""
        if address and error.code() == grpc.StatusCode.UNAVAILABLE:
            said = f"no daemon answers at {address} ({said})"
        # A stranger's call is ended before the daemon can give details: its reason begins the message.
        if error.code() == grpc.StatusCode.UNAUTHENTICATED and (found := re.match(r"(CREDENTIAL_[A-Z]+): ", said)):
            return cls(error.code(), found[1], said[found.end() :])
        return cls(error.code(), "", said, retry_delay=pushback)


class DeadlineError(PenstockError, TimeoutError):
    """The caller's time is over.

    Attributes:
        reason: ``"CALL_DEADLINE"``: the daemon has not answered, and whether it accepted the call is not known.
            ``"HANDLE_PENDING"``: the call was accepted, and has not settled. After both, the same call with
            ``request_id=error.request_id`` asks for its result.
    """

    @classmethod
    def unanswered(cls, what: str, seconds: float | None, request_id: str, cause: PenstockError) -> DeadlineError:
        """Of a call that got no answer; ``cause`` is what its last attempt met."""
        text = f"{what}: no answer in {seconds:g} s" if seconds is not None else f"{what}: given up"
        if cause.code != grpc.StatusCode.DEADLINE_EXCEEDED:
            text += f" (last: {cause})"
        values = {"method": what}
        if request_id:
            values["request_id"] = request_id
            text += f"; ask again by the same call with request_id={request_id!r}, which repeats nothing"
        return cls(grpc.StatusCode.DEADLINE_EXCEEDED, CALL_DEADLINE, text, values)

    @classmethod
    def pending(cls, handle: str, seconds: float | None, request_id: str = "") -> DeadlineError:
        """Of a result that has not settled."""
        text = f"{handle} has not settled in {seconds} s"
        values = {"handle": handle}
        if request_id:
            values["request_id"] = request_id
            text += f"; ask again by the same call with request_id={request_id!r}, which repeats nothing"
        return cls(grpc.StatusCode.DEADLINE_EXCEEDED, "HANDLE_PENDING", text, values)

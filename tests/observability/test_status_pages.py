"""The status pages of a real daemon: every page in three forms, well-formed, closed to other sites, and safe from bad clients."""

from __future__ import annotations

import html.parser
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator

import penstock
import pytest

from conftest import QUICK_DRAIN, StartDaemon  # type: ignore[attr-defined]
from daemon_process import Daemon, eventually
from small_models import create_mlp, mlp_batch

PAGES = [
    "/",
    "/statusz",
    "/pipeline?name=shown",
    "/queuez",
    "/handlez",
    "/memory",
    "/checkpointz",
    "/tracez",
    "/logz",
    "/flagz",
]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
VOID = {"meta", "link"}


def get(daemon: Daemon, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(daemon.admin_address, timeout=60)
    try:
        connection.request(method, path, headers={"Accept": "text/html", **headers})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def shown(daemon: Daemon) -> Iterator[penstock.Pipeline]:
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "shown")
        for step in range(3):
            pipeline.train_step(*mlp_batch(step))
        pipeline.infer(mlp_batch(0)[0])
        pipeline.save_checkpoint()
        yield pipeline


class Balanced(html.parser.HTMLParser):
    """Every element that opens closes, in order; nothing is inline."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert name != "style" and not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert value is not None and value.startswith(("/", "#")), value
            if name == "id":
                assert value is not None
                self.ids.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_html_text_and_json(daemon: Daemon, shown: penstock.Pipeline, path: str) -> None:
    status, headers, body = get(daemon, path)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"] == POLICY
    page = Balanced()
    page.feed(body)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    _, headers, body = get(daemon, path, Accept="*/*")
    assert headers["Content-Type"].startswith("text/plain") and "<" not in body
    joint = "&" if "?" in path else "?"
    _, headers, body = get(daemon, f"{path}{joint}format=json")
    assert headers["Content-Type"] == "application/json" and json.loads(body)["title"]
    status, headers, body = get(daemon, path, method="HEAD")
    assert (status, headers["Content-Type"], body) == (200, "text/html; charset=utf-8", "")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        if (method, path) != ("POST", "/logz"):
            status, headers, _ = get(daemon, path, method=method)
            assert status == 405 and headers["Allow"].startswith("GET, HEAD"), method


def test_pages_tell_what_happened(daemon: Daemon, shown: penstock.Pipeline) -> None:
    page = json.loads(get(daemon, "/pipeline?name=shown&format=json")[2])
    assert page["figures"]["step"] == 3 and page["last_step"]["step"] == 3
    assert [lane["lane"] for lane in page["lanes"]] == [0, 1]
    # Four forwards, four backwards, perhaps recomputed, and the optimizer's parts.
    for lane in page["last_step"]["lanes"]:
        states = [action["state"] for action in lane["actions"]]
        assert states.count("forward") == 4 and states.count("backward") == 4
        ends = [action["end_nanos"] for action in lane["actions"]]
        assert ends == sorted(ends) and max(ends) <= page["last_step"]["makespan_nanos"]
    memory = json.loads(get(daemon, "/memory?format=json")[2])
    weights = sum(lane["weights_bytes"] for lane in memory["lanes"] if lane["pipeline"] == "shown")
    assert weights == 4 * (16 * 16 + 16) * 4
    assert sum(lane["optimizer_bytes"] for lane in memory["lanes"] if lane["pipeline"] == "shown") >= 2 * weights
    assert all(lane["stash_bytes"] == lane["gradients_bytes"] == 0 for lane in memory["lanes"])
    assert json.loads(get(daemon, "/checkpointz?format=json")[2])["checkpoints"][0]["step"] == 3
    settings = {row["name"]: row for row in json.loads(get(daemon, "/flagz?format=json")[2])["settings"]}
    assert settings["--listen"] == {
        "name": "--listen",
        "value": daemon.address,
        "origin": "flag",
        "help": settings["--listen"]["help"],
    }
    assert settings["--max-pipelines"]["origin"] == "default"


def test_handles_are_counted_for_their_caller(daemon: Daemon, shown: penstock.Pipeline) -> None:
    def owned() -> dict[str, int]:
        rows = json.loads(get(daemon, "/handlez?format=json")[2])["owners"]
        return {row["owner"]: row["handles"] for row in rows}

    with penstock.Client(daemon.address, caller="ann") as ann:
        handles = [ann.pipeline("shown").submit_infer(mlp_batch(0)[0]).wait() for _ in range(2)]
        assert owned()["ann"] == 2
        names = [handle.name for handle in handles]
        assert not any(name in get(daemon, path)[2] for path in PAGES for name in names), "pages name no handle"
        for handle in handles:
            handle.release()
        assert "ann" not in owned()


def test_the_log_level_changes_by_a_post_that_no_other_site_can_send(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN)

    def post(level: str, **headers: str) -> tuple[int, str]:
        status, _, body = get(daemon, f"/logz?level={level}", "POST", **headers)
        return status, body

    def level() -> str:
        one: str = json.loads(get(daemon, "/logz?format=json")[2])["log"]["level"]
        return one

    mine = {"X-Penstock-Change": "1"}
    assert post("debug")[0] == 403 and post("debug", **mine, Origin="http://evil.example")[0] == 403
    assert post("debug", **mine, Host="evil.example")[0] == 403
    assert post("loud", **mine) == (400, 'level: must be debug, info, warning or error, got "loud"\n')
    for method in ("GET", "HEAD"):
        get(daemon, "/logz?level=debug", method, **mine)
    assert level() == "info"
    assert post("error", **mine, Origin=f"http://{daemon.admin_address}")[0] == 200 and level() == "error"
    eventually(lambda: 'log level changed from="info" to="error"' in daemon.log)
    assert post("info", **mine)[0] == 200 and level() == "info"


def test_gradients_count_as_memory_until_they_are_applied(daemon: Daemon) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "keeps")

        def memory() -> dict[str, float]:
            lanes = [s for s in json.loads(get(daemon, "/memory?format=json")[2])["lanes"] if s["pipeline"] == "keeps"]
            return {key: sum(s[key] for s in lanes) for key in lanes[0] if key.endswith("_bytes")}

        pipeline.forward_backward(*mlp_batch(0))
        held = memory()
        assert held["gradients_bytes"] == held["weights_bytes"] > 0
        pipeline.optimizer_step()
        assert memory()["gradients_bytes"] == 0
        pipeline.delete()


def test_other_sites_are_refused(daemon: Daemon) -> None:
    assert get(daemon, "/statusz", Host="evil.example")[0] == 403
    assert get(daemon, "/metrics", Host="evil.example:8474")[0] == 403
    assert get(daemon, "/statusz", Host="localhost:1")[0] == 200
    assert get(daemon, "/statusz", method="POST")[0] == 405


def test_unknown_paths_and_pipelines(daemon: Daemon) -> None:
    for path in ("/nothing", "/pipeline?name=%3Cscript%3Ealert(1)%3C/script%3E", "/style.css/x", "/../flagz"):
        status, headers, body = get(daemon, path)
        assert status in (400, 404) and "script" not in body and headers["Content-Type"].startswith("text/plain"), path


def test_bad_clients_hold_nobody_up(daemon: Daemon, shown: penstock.Pipeline) -> None:
    """Half-open connections, and readers that ask and do not read: after their time the pages are served again, and
    training never noticed."""
    host, port = daemon.admin_address.split(":")
    connections: list[socket.socket] = []
    for i in range(60):
        connection = socket.create_connection((host, int(port)), timeout=30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        if i % 3 == 1:
            connection.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
        elif i % 3 == 2:
            connection.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connections.append(connection)
    for step in range(3):
        shown.train_step(*mlp_batch(step))
    assert daemon.page("/healthz")  # the port of the probes has workers of its own
    deadline = time.monotonic() + 120
    while True:
        try:
            assert get(daemon, "/statusz")[0] == 200
            break
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline
    for connection in connections:
        connection.close()


def test_they_are_for_this_host_alone(start_daemon: StartDaemon) -> None:
    for also in ((), ("--insecure",)):
        with pytest.raises(AssertionError, match="--admin-listen: must be an address of this host alone"):
            start_daemon(*QUICK_DRAIN, "--admin-listen=0.0.0.0:0", *also)
    off = start_daemon(*QUICK_DRAIN, "--admin-listen=off")
    with pytest.raises(OSError):
        get(off, "/")

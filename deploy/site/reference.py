"""The pages of docs/reference: what programs, protos and sources say of themselves, as tables.

Usage: reference.py --write | --check     (with penstockd and penstock named by PENSTOCKD and PENSTOCK, and protoc on PATH)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

import locks as lock_rows
import python_api
from google.protobuf import descriptor_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/reference"
MADE = "This page is made by `deploy/site/reference.py --write`; a test compares it.\n"
# Words of sources that look like reasons and are none: what libraries say, environment variables, parts of actions.
OTHER_WORDS = set(
    "CUBLAS_STATUS_ALLOC_FAILED CUBLAS_WORKSPACE_CONFIG CUDNN_STATUS_ALLOC_FAILED DEVICE_ALLOCATION_FAILED "
    "JOB_COMPLETION_INDEX LWS_GROUP_SIZE LWS_LEADER_ADDRESS LWS_WORKER_INDEX MASTER_ADDR MASTER_PORT NOTIFY_SOCKET "
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PENSTOCK_CONFIG PENSTOCK_LEADER PENSTOCK_PEER_LISTEN PENSTOCK_POD_INDEX "
    "PENSTOCK_RANK PENSTOCK_WORLD_SIZE RECV_B RECV_F REDUCE_GRAD SEND_B SEND_F SLURM_NTASKS SLURM_PROCID UCX_DEBUG_SIGNO "
    "UCX_HANDLE_ERRORS UCX_MEM_EVENTS UCX_NET_DEVICES UCX_TCP_CONN_NB UCX_TCP_PORT_RANGE UCX_TCP_PUT_ENABLE "
    "UCX_TCP_RX_SEG_SIZE UCX_TCP_TX_SEG_SIZE UCX_TLS UCX_ZCOPY_THRESH WATCHDOG_PID WATCHDOG_USEC WORLD_SIZE XDG_STATE_HOME".split()
)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "&#91;")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def flags() -> str:
    text = run(os.environ["PENSTOCKD"], "--help")
    options = re.sub(r"\n {10,}", "  ", text[text.index("Options:") :])
    rows = []
    for line in options.splitlines():
        if not (found := re.match(r"  (?:-\w,)?--([a-z-]+) ?(\w*) {2,}(.+?)(?: \[([^\]]*)\])?$", line)):
            continue
        name, value, what, default = found.groups()
        rows.append((f"`--{name}`", value.lower(), f"`{default}`" if default else "", cell(what)))
    return (
        f"# Flags of penstockd\n\n{MADE}\nA flag wins over the environment variable (`PENSTOCK_` and the name in capitals), "
        "that over the file of `--config`.\n\n" + table(("flag", "value", "default", "meaning"), rows)
    )


def commands() -> str:
    penstock = os.environ["PENSTOCK"]
    parts = [f"# Commands of penstock\n\n{MADE}\n[The shell](../cli.md) explains them by use.\n"]
    for line in run(penstock, "--dump=commands").splitlines():
        words = re.match(r"[a-z -]+?(?= *(?:$|\[|[A-Z]))", line)
        name = words[0].strip() if words else line
        text = run(penstock, *name.split(), "--help").strip()
        parts.append(f"\n## penstock {name}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def metrics() -> str:
    rows = []
    for metric in json.loads((ROOT / "tests/unit/metrics/metric_table.json").read_text()):
        labels = [label["name"] + (": " + " ".join(label["values"]) if label["values"] else "") for label in metric["labels"]]
        rows.append((f"`{metric['name']}`", metric["type"], cell("; ".join(labels)), cell(metric["help"])))
    return (
        f"# Metrics\n\n{MADE}\n[What they mean and how to look at them](../observability.md).\n\n"
        + table(("metric", "type", "labels and their values", "meaning"), rows)
    )


def source_text() -> str:
    paths = (path for folder in ("engine", "server") for path in sorted((ROOT / folder).rglob("*")))
    return "".join(path.read_text() for path in paths if path.suffix in (".h", ".cc"))


def codes_of_reasons(sources: str) -> dict[str, set[str]]:
    """Each reason of an error, with the gRPC codes that stand beside it; none where a helper adds the code."""
    found: dict[str, set[str]] = {word: set() for word in re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', sources)}
    for code, reason in re.findall(r'StatusCode::k(\w+),\s*"([A-Z][A-Z_]{2,})"', sources):
        found.setdefault(reason, set()).add(re.sub(r"(?<!^)(?=[A-Z])", "_", code).upper())
    return {reason: codes for reason, codes in found.items() if reason not in OTHER_WORDS}


def errors() -> str:
    known = {}
    for line in (pathlib.Path(__file__).parent / "errors.txt").read_text().splitlines():
        if not line.startswith("#"):
            reason, cause, again = (part.strip() for part in line.split("|"))
            known[reason] = (cause, again)
    codes = codes_of_reasons(source_text())
    for reason in sorted(set(codes) ^ set(known)):
        where = "lacks it, though the sources give it" if reason in codes else "has it, though no source gives it"
        raise ValueError(f"{reason}: deploy/site/errors.txt {where}")
    rows = [
        (f"`{reason}`", ", ".join(f"`{code}`" for code in sorted(codes[reason])), cell(cause), cell(again))
        for reason, (cause, again) in sorted(known.items())
    ]
    return (
        f"# Errors\n\n{MADE}\nAn error has a gRPC code, a *reason* in its `ErrorInfo`, and values that name the field, the value, "
        "the stage, the micro-batch or the pipeline. The clients repeat calls under the same request id where the code is "
        "`UNAVAILABLE`, and where no answer came. Which input gets which error: [Bad inputs](../bad_inputs.md).\n\n"
        + table(("reason", "code", "what happened", "who asks again"), rows)
    )


def comment(info: descriptor_pb2.SourceCodeInfo, path: tuple[int, ...]) -> str:
    for location in info.location:
        if tuple(location.path) == path:
            return (location.leading_comments + " " + location.trailing_comments).strip()
    return ""


def prose(said: str) -> str:
    """A comment as paragraphs; what is indented in it, a table or an example, as it stands."""
    text = ""
    for indented, lines in itertools.groupby(said.splitlines(), lambda line: line.startswith("   ") or not line.strip() and None):
        block = list(lines)
        if indented:
            text += "```text\n" + textwrap.dedent("\n".join(block)) + "\n```\n\n"
        elif indented is False:
            for part in re.split(r"\n(?= ?(?:Fails|Units):)", "\n".join(block)):
                text += cell(part.strip()) + "\n\n"
    return text


def type_of(field: descriptor_pb2.FieldDescriptorProto) -> str:
    kind = field.type_name.removeprefix(".penstock.v1.").lstrip(".")
    if not kind:
        kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    return ("repeated " if repeated else "optional " if field.proto3_optional else "") + kind


def message_text(message: descriptor_pb2.DescriptorProto, name: str, info: descriptor_pb2.SourceCodeInfo, path: tuple[int, ...]) -> str:
    rows = [
        (str(field.number), f"`{field.name}`", cell(type_of(field)), cell(comment(info, (*path, 2, i))))
        for i, field in enumerate(message.field)
    ]
    text = f"\n### {name}\n\n"
    if said := comment(info, path):
        text += prose(said)
    text += table(("", "field", "type", ""), rows) if rows else "No fields.\n"
    for i, inner in enumerate(message.nested_type):
        if not inner.options.map_entry:
            text += message_text(inner, f"{name}.{inner.name}", info, (*path, 3, i))
    return text


def method_options() -> dict[str, tuple[str, str]]:
    """The least role of each method and whether it changes state, from the text: descriptor sets have options as unknown
    fields."""
    texts = (path.read_text() for path in (ROOT / "proto/penstock/v1").glob("*_service.proto"))
    parts = (part for text in texts for part in text.split("  rpc ")[1:])
    return {
        part.split("(")[0]: (re.findall(r"\(role\) = ROLE_(\w+)", part)[0].lower(), "yes" if "(changes_state)" in part else "")
        for part in parts
    }


def grpc_api() -> str:
    protos = sorted((ROOT / "proto/penstock/v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "set"
        run("protoc", f"--proto_path={ROOT / 'proto'}", "--include_source_info", f"--descriptor_set_out={out}", *map(str, protos))
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    services, messages, options = "", "", method_options()
    for file in files.file:
        info = file.source_code_info
        for s, service in enumerate(file.service):
            services += f"\n## {service.name}\n\n{prose(comment(info, (6, s)))}"
            rows = []
            for m, method in enumerate(service.method):
                asks, gives = method.input_type.split(".")[-1], method.output_type.split(".")[-1]
                asks = ("stream " if method.client_streaming else "") + asks
                gives = ("stream " if method.server_streaming else "") + gives
                rows.append((f"`{method.name}`", asks, gives, *options[method.name], cell(comment(info, (6, s, 2, m)))))
            services += table(("method", "takes", "returns", "role", "changes state", ""), rows)
        for i, message in enumerate(file.message_type):
            messages += message_text(message, message.name, info, (4, i))
        for i, enum in enumerate(file.enum_type):
            rows = [(f"`{value.name}`", cell(comment(info, (5, i, 2, v)))) for v, value in enumerate(enum.value)]
            messages += f"\n### {enum.name}\n\n" + table(("value", ""), rows)
    return f"# gRPC API\n\n{MADE}\nPackage `penstock.v1`; the files: [proto](../../proto/penstock/v1).\n{services}\n## Messages\n{messages}"


def python_client() -> str:
    return python_api.page(ROOT / "client/python/penstock", MADE)


def locks() -> str:
    return (
        f"# Locks\n\n{MADE}\n[Threads, and the rules for locks](../thread_model.md). A lock without fields guards what is not a field, "
        "such as files, or the order of two calls.\n\n"
        + table(("whose", "lock", "guards", "is taken before"), lock_rows.rows(ROOT))
    )


MAKERS = {
    "flags": flags,
    "commands": commands,
    "metrics": metrics,
    "errors": errors,
    "grpc": grpc_api,
    "python": python_client,
    "locks": locks,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--write", action="store_true")
    way.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    PAGES.mkdir(exist_ok=True)
    stale = []
    for name, make in MAKERS.items():
        page, text = PAGES / f"{name}.md", make()
        if arguments.write:
            page.write_text(text)
        elif not page.is_file() or page.read_text() != text:
            stale.append(str(page.relative_to(ROOT)))
    for page in stale:
        print(f"reference: {page} is not what the programs say: run deploy/site/reference.py --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

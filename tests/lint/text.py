"""Looks for words and constructions that have no place here. Each rule has its reason; exceptions are files."""

import dataclasses
import pathlib
import re

import tree

CODE = (".h", ".cc", ".cu")
EVERYTHING = CODE + (".py", ".md", ".sh", ".txt", ".cmake", ".json", ".proto", ".toml", ".supp")

# RunTorch's file, and for each throwing library the one file that wraps it.
MAY_THROW = (
    r"^tests/|^engine/base/guard\.(h|cc)$|^engine/device/torch_status\.cc$"
    r"|^engine/model/safetensors\.cc$"  # JSON
    r"|^(client/cli/command_line|server/daemon_options)\.cc$"  # CLI11
)

# Another process's progress can only be asked for again and again.
ANOTHER_PROCESS = r"^tests/support/daemon_process\.cc$"


@dataclasses.dataclass
class Rule:
    pattern: str
    suffixes: tuple[str, ...]
    reason: str
    allowed: str = r"(?!)"  # files that may, as a pattern of their path


RULES = [
    Rule(r"/(home|Users|work|workspace)/\w", EVERYTHING, "names a path of somebody's machine", r"tests/lint/"),
    Rule(r"\b(TODO|FIXME|XXX|HACK)\b", EVERYTHING, "leaves a reminder: do it or say what is missing", r"tests/lint/"),
    Rule(r"std::j?thread\b", CODE, "starts a thread: use engine/base/thread.h", r"engine/base/thread\.(h|cc)$"),
    Rule(r"\bstd::(recursive_|shared_)?mutex\b", CODE, "is invisible to thread-safety analysis: use absl::Mutex"),
    Rule(
        r"\b(sleep_for|sleep_until|usleep|nanosleep|SleepFor)\b",
        CODE,
        "sleeps: wait for a condition or a clock",
        ANOTHER_PROCESS,
    ),
    Rule(r"#\s*define\s+(CHECK|LOG)\b", CODE, "redefines a macro of LibTorch"),
    Rule(r"#\s*include\s+<torch/torch\.h>", CODE, "costs 20 seconds per file: include single operators"),
    Rule(r"^\s*(\} )?(try \{|catch \(|throw\b)", CODE, "deals with exceptions outside the files that may", MAY_THROW),
    Rule(r"^using namespace\b", CODE, "opens a whole namespace"),
]
NAMES = Rule(r"(^|[_/])(utils?|helpers?|common|misc)([_./]|$)", CODE + (".py", ".proto"), "is a name that says nothing")


def check_file(path: pathlib.Path, text: str) -> list[str]:
    problems = []
    if path.suffix in NAMES.suffixes and re.search(NAMES.pattern, str(path)):
        problems.append(f"{path}: {NAMES.reason}")
    rules = [rule for rule in RULES if path.suffix in rule.suffixes and not re.search(rule.allowed, str(path))]
    for number, line in enumerate(text.splitlines(), 1):
        for rule in rules:
            if match := re.search(rule.pattern, line):
                problems.append(f"{path}:{number}: '{match[0]}' {rule.reason}")
    return problems


def check(root: pathlib.Path) -> list[str]:
    problems = []
    for path in tree.files(root, EVERYTHING, (".",)):
        text = (root / path).read_text(errors="replace")
        problems += check_file(path, text)
        if str(root) in text:
            problems.append(f"{path}: holds the path of this checkout")
    return problems


if __name__ == "__main__":
    tree.main(check, "text")

"""Puts one fault after another into a copy of the tree, and tells which of them no test sees.

Usage: run.py [--room ROOM]... [--only NAME]... [--again OUTCOME] [--jobs N]

The faults stand in tests/mutation/rooms, one file per room; what became of each in tests/mutation/results. A mutation
whose place reads as it did when its result was written is not run again: a run that is stopped goes on where it ended.
"""

import argparse
import pathlib
import shlex
import sys

import mutations as lists
import results as tables
from mutations import Mutation
from results import DIED, LIVED, NOT_BUILT, TIMED_OUT, Result
from scratch import SKIPPED, Scratch, case_in

ANY = "any"
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Runner:
    def __init__(self, scratch: Scratch):
        self._scratch = scratch
        self._limits: dict[str, float] = {}  # of each program, in seconds, from its run without a mutation

    def run(self, mutation: Mutation) -> tuple[str, str]:
        """The outcome, and the program and case that saw it. One program after another: the first may be enough."""
        for program in mutation.programs:
            self._measure(program)
            with self._scratch.mutated(mutation):
                outcome, seen_by = self._outcome(program)
            if outcome != LIVED:
                return outcome, seen_by
        return LIVED, ""

    def _measure(self, program: str) -> None:
        """A program that fails without a mutation shows nothing."""
        if program in self._limits:
            return
        built, said = self._scratch.build([program])
        if not built:
            raise SystemExit(f"{program} does not build without a mutation:\n{said}")
        code, output, seconds = self._scratch.run(program, 1800)
        if code == SKIPPED:
            raise SystemExit(f"{program} is skipped here:\n{output[-4000:]}")
        if code != 0:
            raise SystemExit(f"{program} fails without a mutation, in {case_in(output)}:\n{output[-4000:]}")
        self._limits[program] = 30 + 5 * seconds

    def _outcome(self, program: str) -> tuple[str, str]:
        built, said = self._scratch.build([program])
        if not built:
            print(said)
            return NOT_BUILT, ""
        code, output, _ = self._scratch.run(program, self._limits[program])
        if code is None:
            return TIMED_OUT, f"{program} {case_in(output)}"
        if code != 0:
            return DIED, f"{program} {case_in(output)}"
        return LIVED, ""


def chosen(arguments: argparse.Namespace, every: list[Mutation]) -> list[Mutation]:
    rooms, names = set(arguments.room), set(arguments.only)
    unknown = (rooms - {mutation.room for mutation in every}) | (names - {mutation.name for mutation in every})
    if unknown:
        raise SystemExit(f"no such room or mutation: {', '.join(sorted(unknown))}")
    return [m for m in every if (not rooms or m.room in rooms) and (not names or m.name in names)]


def waiting(root: pathlib.Path, selection: list[Mutation], again: str | None) -> list[Mutation]:
    """Those without a result for the text as it reads now, and those whose outcome is asked for again."""
    run = []
    for mutation in selection:
        result = tables.read(root, mutation.room).get(mutation.name)
        changed = result is not None and result.place != lists.place(root, mutation)
        if changed:
            print(f"{mutation.title}: its place has changed since its result")
        if result is None or changed or again in (result.outcome, ANY):
            run.append(mutation)
    return run


def record(mutation: Mutation, result: Result, every: list[Mutation]) -> None:
    results = tables.read(ROOT, mutation.room)
    results[mutation.name] = result
    tables.write(ROOT, mutation.room, results, [other.name for other in every if other.room == mutation.room])


def report(problems: list[str]) -> int:
    print("\n".join(problems) if problems else "mutations: in order")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--check", action="store_true", help="run nothing: are the lists true, and has each that lives a reason?")
    add("--table", action="store_true", help="run nothing: write the table of docs/mutation.md")
    add("--room", action="append", default=[], help="for example engine/exec; may stand several times")
    add("--only", action="append", default=[], metavar="NAME", help="this one; may stand several times")
    add("--again", choices=[DIED, LIVED, TIMED_OUT, NOT_BUILT, ANY], help="also those with this outcome")
    add("--jobs", type=int, default=1, help="of a build (default: 1)")
    add("--build-prefix", type=shlex.split, default=[], metavar="COMMAND", help="put before each build: 'nice -n 19'")
    add("--scratch", type=pathlib.Path, default=ROOT / "build/mutation/tree", metavar="FOLDER",
        help="the copy of the tree (default: build/mutation/tree)")
    arguments = parser.parse_args()

    every = lists.read_lists(ROOT)
    if problems := lists.check(ROOT, every):
        return report(problems)
    if arguments.check:
        return report(tables.check(ROOT, every))
    if not arguments.table:
        scratch = Scratch(ROOT, arguments.scratch, arguments.jobs, arguments.build_prefix)
        scratch.update()
        scratch.configure()
        runner = Runner(scratch)
        selection = chosen(arguments, every)
        todo = waiting(ROOT, selection, arguments.again)
        for number, mutation in enumerate(todo, 1):
            print(f"[{number}/{len(todo)}] {mutation.title}: ", end="", flush=True)
            place = lists.place(arguments.scratch, mutation)
            outcome, seen_by = runner.run(mutation)
            record(mutation, Result(mutation.name, place, outcome, seen_by), every)
            print(f"{outcome} {seen_by}".rstrip(), flush=True)
    (ROOT / tables.PAGE).write_text(tables.page(ROOT, every))
    return report(tables.check(ROOT, every))


if __name__ == "__main__":
    sys.exit(main())

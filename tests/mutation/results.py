"""The committed table of what became of each mutation: results/ROOM.tsv, and its summary in docs/mutation.md."""

import dataclasses
import pathlib

from mutations import Mutation

TABLES = pathlib.Path("tests/mutation/results")
PAGE = pathlib.Path("docs/mutation.md")
BEGIN, END = "<!-- the table, by tests/mutation/run.py -->\n", "<!-- end of the table -->\n"

DIED, LIVED, TIMED_OUT, NOT_BUILT = "died", "lived", "timed out", "did not build"


@dataclasses.dataclass
class Result:
    name: str
    place: str  # of mutations.place, when it was run
    outcome: str
    seen_by: str  # the program and its case; "" if it lived

    def line(self) -> str:
        return "\t".join([self.name, self.place, self.outcome, self.seen_by]) + "\n"


def _path(root: pathlib.Path, room: str) -> pathlib.Path:
    return root / TABLES / f"{room.replace('/', '_')}.tsv"


def read(root: pathlib.Path, room: str) -> dict[str, Result]:
    path = _path(root, room)
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()[1:]
    return {result.name: result for result in (Result(*line.split("\t")) for line in lines)}


def write(root: pathlib.Path, room: str, results: dict[str, Result], names: list[str]) -> None:
    """Keeps those of `names`, in that order."""
    path = _path(root, room)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [results[name].line() for name in names if name in results]
    path.write_text("name\tplace\toutcome\tseen by\n" + "".join(kept))


def table(root: pathlib.Path, mutations: list[Mutation]) -> str:
    """Markdown: a row for each room, then those that live, with their sentences."""
    rows = ["| room | mutations | died | timed out | live | not run |", "|---|---|---|---|---|---|"]
    living = []
    totals = [0] * 5
    for room in dict.fromkeys(mutation.room for mutation in mutations):
        results = read(root, room)
        of_room = [mutation for mutation in mutations if mutation.room == room]
        outcomes = [results[mutation.name].outcome for mutation in of_room if mutation.name in results]
        numbers = [len(of_room), *(outcomes.count(outcome) for outcome in (DIED, TIMED_OUT, LIVED))]
        numbers.append(len(of_room) - len(outcomes))
        totals = [total + number for total, number in zip(totals, numbers)]
        rows.append(f"| {room} | " + " | ".join(map(str, numbers)) + " |")
        living += [m for m in of_room if m.name in results and results[m.name].outcome == LIVED]
    rows.append("| all | " + " | ".join(map(str, totals)) + " |")
    if living:
        rows += ["", "| it lives | because |", "|---|---|"]
        rows += [f"| `{mutation.title}` | {mutation.lives_because} |" for mutation in living]
    return "\n".join(rows) + "\n"


def page(root: pathlib.Path, mutations: list[Mutation]) -> str:
    """The page as it should read."""
    before, rest = (root / PAGE).read_text().split(BEGIN)
    return before + BEGIN + "\n" + table(root, mutations) + "\n" + END + rest.split(END)[1]


def check(root: pathlib.Path, mutations: list[Mutation]) -> list[str]:
    """One sentence for each mutation that lives without a reason, and one if the page is older than the tables."""
    problems = []
    for mutation in mutations:
        result = read(root, mutation.room).get(mutation.name)
        if result and result.outcome == LIVED and not mutation.lives_because:
            problems.append(f"{mutation.title}: lives; write the test that sees it, or lives_because")
        if result and result.outcome != LIVED and mutation.lives_because:
            problems.append(f"{mutation.title}: may live, and was seen by {result.seen_by}; drop lives_because")
        if result and result.outcome == NOT_BUILT:
            problems.append(f"{mutation.title}: does not build; write a fault that does")
    if (root / PAGE).read_text() != page(root, mutations):
        problems.append(f"{PAGE}: the table is not that of the results; write it by tests/mutation/run.py --table")
    return problems

"""The lists of mutations, one file per room (rooms/*.toml), and what is checked of them."""

import dataclasses
import hashlib
import pathlib
import tomllib

LISTS = pathlib.Path("tests/mutation/rooms")
LINES_AROUND = 5  # of a place: a change that near asks for a new run


@dataclasses.dataclass
class Mutation:
    """One place of one file, and the wrong text that takes the place of the right one."""

    room: str
    name: str  # unique in its room
    file: str  # relative to the root
    old: str
    new: str
    programs: list[str]  # ctest's names of what should see it, in the order in which they are tried
    prepare: list[str]  # a command that runs in the scratch copy before the build
    lives_because: str  # why it changes nothing that a test could see; empty for all others

    @property
    def title(self) -> str:
        return f"{self.room} {self.name}"


def read_list(path: pathlib.Path) -> list[Mutation]:
    table = tomllib.loads(path.read_text())
    return [
        Mutation(
            room=table["room"],
            name=row["name"],
            file=f"{table['room']}/{row['file']}",
            old=row["old"],
            new=row["new"],
            programs=row.get("programs", table["programs"]),
            prepare=table.get("prepare", []),
            lives_because=row.get("lives_because", ""),
        )
        for row in table["mutation"]
    ]


def read_lists(root: pathlib.Path) -> list[Mutation]:
    return [mutation for path in sorted((root / LISTS).glob("*.toml")) for mutation in read_list(path)]


def list_of(room: str) -> str:
    """The path of a room's list."""
    return str(LISTS / f"{room.replace('/', '_')}.toml")


def check(root: pathlib.Path, mutations: list[Mutation]) -> list[str]:
    """One sentence for each fault of the lists, with what to do about it."""
    problems = []
    titles = set()
    for mutation in mutations:
        where = f"{list_of(mutation.room)}: {mutation.name}"
        if mutation.title in titles:
            problems.append(f"{where}: the name stands twice; give one of them another")
        titles.add(mutation.title)
        if mutation.old == mutation.new:
            problems.append(f"{where}: old and new are the same")
        path = root / mutation.file
        if not path.is_file():
            problems.append(
                f"{where}: there is no {mutation.file}; name the file that holds the line now, or drop the mutation"
            )
            continue
        found = path.read_text().count(mutation.old)
        if found != 1:
            problems.append(
                f"{where}: the old text stands {found} times in {mutation.file}, not once. Write the line as it reads "
                f"now (longer, if others read the same), with the same fault in `new`; drop the mutation if the line is "
                f"gone:\n{mutation.old}"
            )
    return problems


def place(root: pathlib.Path, mutation: Mutation) -> str:
    """A digest of what a result stands for: both texts, and the lines around the place."""
    before, after = (root / mutation.file).read_text().split(mutation.old)
    near = before.split("\n")[-LINES_AROUND - 1 :] + after.split("\n")[: LINES_AROUND + 1]
    return hashlib.sha256("\0".join([mutation.old, mutation.new, *near]).encode()).hexdigest()[:12]

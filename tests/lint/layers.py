"""Compares real #include lines and real target_link_libraries with cmake/layers.txt.

Usage: layers.py TARGETS     (the list of targets that CMake wrote)
"""

import dataclasses
import pathlib
import re
import sys

import tree

# What an include of a library, or a link to it, is called in layers.txt. The first match counts.
LIBRARY_OF_INCLUDE = [
    (r"absl/", "absl"),
    (r"(spdlog|fmt)/", "spdlog"),
    (r"google/protobuf/", "protobuf"),
    (r"grpc(pp)?/", "grpc"),
    (r"(ATen|c10|torch|caffe2)/", "torch"),
    (r"prometheus/", "prometheus"),
    (r"(civetweb|CivetServer)\.h$", "civetweb"),
    (r"CLI/", "cli11"),
    (r"nlohmann/", "json"),
    (r"isa-l(/|\.h)", "isal"),
    (r"openssl/", "openssl"),
    (r"uc[pst]/", "ucx"),
    (r"sqlite3\.h$", "sqlite"),
    (r"(sys|arpa|net|netinet|linux)/|[^/]+$", "system"),
]
LIBRARY_OF_LINK = [
    (r"absl::", "absl"),
    (r"(spdlog|fmt)::", "spdlog"),
    (r"protobuf::", "protobuf"),
    (r"gRPC::", "grpc"),
    (r"LibTorch::", "torch"),
    (r"prometheus-cpp::", "prometheus"),
    (r".*libcivetweb", "civetweb"),
    (r"CLI11::", "cli11"),
    (r"nlohmann_json::", "json"),
    (r"isal$", "isal"),
    (r"jemalloc$", "jemalloc"),
    (r"OpenSSL::", "openssl"),
    (r"SQLite::", "sqlite"),
    (r"ucx::", "ucx"),
    (r"(Threads::Threads|dl|rt|m)$", "system"),
]
OPEN_TO_ALL = {"base", "absl", "system"}
NO_ROOMS = {"penstock_warnings", "penstock_tsan_mutex", "penstock_cuda_seam"}  # targets that carry switches only


@dataclasses.dataclass
class Room:
    name: str
    folder: str
    rooms: set[str]  # "*": every room above
    libraries: set[str]
    exceptions: dict[str, set[str]]  # a room or library that only these files may name


def read_layers(text: str) -> tuple[list[Room], list[str]]:
    """Reads layers.txt; returns the rooms in their order, and what is wrong with the file itself."""
    rooms, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        parts = [part.split() for part in line.split(":")]
        if len(parts) != 3 or len(parts[0]) != 2:
            problems.append(f"cmake/layers.txt:{number}: expected ROOM FOLDER : ROOMS : LIBRARIES")
            continue
        exceptions: dict[str, set[str]] = {}
        allowed: list[set[str]] = []
        for words in parts[1:]:
            names = set()
            for word in words:
                only = re.fullmatch(r"([\w*]+)\[([\w.,]+)\]", word)
                names.add(only[1] if only else word)
                if only:
                    exceptions[only[1]] = set(only[2].split(","))
            allowed.append(names)
        (name, folder), above = parts[0], {room.name for room in rooms}
        for unknown in sorted(allowed[0] - above - {"*"}):
            problems.append(f"cmake/layers.txt:{number}: room {name} uses {unknown}, which does not stand above it")
        rooms.append(Room(name, folder, above if "*" in allowed[0] else allowed[0], allowed[1], exceptions))
    return rooms, problems


def _first_match(table: list[tuple[str, str]], name: str) -> str | None:
    return next((library for pattern, library in table if re.match(pattern, name)), None)


def _used_by_include(root: pathlib.Path, rooms: list[Room], name: str) -> str | None:
    """The room or library that an include line names; None if nobody knows it."""
    generated = re.fullmatch(r"(.+?)(\.grpc)?\.pb\.h", name)
    if generated and (root / "proto" / f"{generated[1]}.proto").exists():
        return "proto_grpc" if generated[2] else "proto"
    if (root / name).exists():
        room = room_of(rooms, pathlib.Path(name))
        return room.name if room else None
    return _first_match(LIBRARY_OF_INCLUDE, name)


def room_of(rooms: list[Room], path: pathlib.Path) -> Room | None:
    """The room with the longest folder that holds `path`."""
    holding = [room for room in rooms if path.is_relative_to(room.folder)]
    return max(holding, key=lambda room: len(room.folder), default=None)


def _forbidden(room: Room, used: str, file_name: str) -> bool:
    if used == room.name or used in OPEN_TO_ALL:
        return False
    if used in room.exceptions and file_name and file_name not in room.exceptions[used]:
        return True
    return used not in room.rooms | room.libraries


def check_includes(root: pathlib.Path, rooms: list[Room]) -> list[str]:
    problems = []
    for path in tree.files(root, (".h", ".cc"), ("proto", "engine", "server", "client")):
        room = room_of(rooms, path)
        if room is None:
            problems.append(f"{path}: its folder is no room of cmake/layers.txt")
            continue
        for name in tree.includes((root / path).read_text()):
            used = _used_by_include(root, rooms, name)
            if used is None:
                problems.append(f"{path}: includes {name}, which is in no known room or library")
            elif _forbidden(room, used, path.name):
                problems.append(f"{path}: room {room.name} may not use {used}, but includes {name}")
    return problems


def check_folders(root: pathlib.Path, rooms: list[Room]) -> list[str]:
    """Between the folders of one room arrows go one way, too."""
    uses: dict[pathlib.Path, dict[pathlib.Path, str]] = {}  # by folder: the others that it includes, and an example
    for path in tree.files(root, (".h", ".cc"), ("engine", "server", "client")):
        room = room_of(rooms, path)
        if room is None:
            continue
        for name in map(pathlib.Path, tree.includes((root / path).read_text())):
            if (root / name).exists() and name.parent != path.parent and room_of(rooms, name) == room:
                uses.setdefault(path.parent, {}).setdefault(name.parent, f"{path} includes {name}")

    def reaches(start: pathlib.Path, end: pathlib.Path) -> bool:
        reached, waiting = set(), [start]
        while waiting:
            new = set(uses.get(waiting.pop(), {})) - reached
            reached |= new
            waiting += new
        return end in reached

    return [
        f"{where}, and {folder} is used from there: a circle of folders in one room"
        for folder, used in uses.items()
        for to, where in used.items()
        if reaches(to, folder)
    ]


def check_links(rooms: list[Room], targets: list[tree.Target]) -> list[str]:
    problems = []
    by_name = {f"penstock_{room.name}": room for room in rooms}
    room_by_target = {t.name: by_name.get(t.name) or room_of(rooms, pathlib.Path(t.folder)) for t in targets}
    for target in targets:
        room = room_by_target[target.name]
        if target.folder.split("/")[0] not in ("proto", "engine", "server", "client"):
            continue  # tests may use anything
        if room is None:
            problems.append(f"target {target.name}: its folder {target.folder} is no room of cmake/layers.txt")
            continue
        for link in target.links:
            if link in NO_ROOMS or link.startswith("::@"):
                continue
            own = re.fullmatch(r"penstock(?:::|_)(\w+)", link)
            if own and room_by_target.get(f"penstock_{own[1]}") == room:
                continue  # another target of the room itself
            used = own[1] if own else _first_match(LIBRARY_OF_LINK, link)
            if used is None:
                problems.append(f"target {target.name}: links {link}, which is no known library")
            elif own and used not in {r.name for r in rooms}:
                problems.append(f"target {target.name}: links {link}, which is no room of cmake/layers.txt")
            elif _forbidden(room, used, ""):
                problems.append(f"target {target.name}: room {room.name} may not use {used}, but links {link}")
    return problems


def check(root: pathlib.Path, targets: list[tree.Target]) -> list[str]:
    rooms, problems = read_layers((root / "cmake/layers.txt").read_text())
    for room in rooms:
        if not (root / room.folder / "CMakeLists.txt").exists():
            problems.append(f"cmake/layers.txt: room {room.name} has no {room.folder}/CMakeLists.txt")
    return problems + check_includes(root, rooms) + check_folders(root, rooms) + check_links(rooms, targets)


if __name__ == "__main__":
    tree.main(lambda root: check(root, tree.targets(root, pathlib.Path(sys.argv[1]).read_text())), "layers")

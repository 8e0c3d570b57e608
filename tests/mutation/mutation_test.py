"""Tests of what runs the mutations, in a small tree of its own."""

import argparse
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import mutations as lists
import results as tables
import run
import scratch
from results import DIED, LIVED, Result

LIST = '''
room = "engine/base"
programs = ["base_test"]

[[mutation]]
name = "one_more"
file = "count.cc"
old = "i < count"
new = "i <= count"
'''
SOURCE = "".join(f"line {n}\n" for n in range(20)) + "for (int i = 0; i < count; ++i) Add(i);\n"


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.write("tests/mutation/rooms/engine_base.toml", LIST)
        self.write("engine/base/count.cc", SOURCE)
        self.write("docs/mutation.md", "Before.\n" + tables.BEGIN + tables.END + "After.\n")
        self.assertEqual(lists.check(self.root, self.read()), [])

    def write(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

    def read(self) -> list[lists.Mutation]:
        return lists.read_lists(self.root)

    def assert_finds(self, problems: list[str], *words: str) -> None:
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])


class ListTest(TreeTest):
    def test_a_line_that_has_changed_is_told_with_what_to_do(self):
        self.write("engine/base/count.cc", "for (int i = 0; i < size; ++i) Add(i);\n")
        problems = lists.check(self.root, self.read())
        self.assert_finds(problems, "engine_base.toml: one_more", "0 times", "i < count", "as it reads now")

    def test_a_text_that_stands_twice_is_no_place(self):
        self.write("engine/base/count.cc", SOURCE * 2)
        self.assert_finds(lists.check(self.root, self.read()), "2 times")

    def test_a_file_that_is_gone_is_told(self):
        (self.root / "engine/base/count.cc").unlink()
        self.assert_finds(lists.check(self.root, self.read()), "there is no engine/base/count.cc")

    def test_a_fault_must_be_one(self):
        self.write("tests/mutation/rooms/engine_base.toml", LIST.replace("i <= count", "i < count"))
        self.assert_finds(lists.check(self.root, self.read()), "the same")

    def test_a_name_stands_once(self):
        entry = LIST[LIST.index("[[mutation]]") :]
        self.write("tests/mutation/rooms/engine_base.toml", LIST + entry)
        self.assert_finds(lists.check(self.root, self.read()), "twice")

    def test_a_result_is_of_the_lines_around_its_place(self):
        mutation = self.read()[0]
        before = lists.place(self.root, mutation)
        self.write("engine/base/count.cc", SOURCE.replace("line 3\n", "other\n"))
        self.assertEqual(lists.place(self.root, mutation), before)
        self.write("engine/base/count.cc", SOURCE.replace("line 18\n", "other\n"))
        self.assertNotEqual(lists.place(self.root, mutation), before)


class ResultTest(TreeTest):
    def record(self, outcome: str, place: str = "") -> None:
        result = Result("one_more", place or lists.place(self.root, self.read()[0]), outcome, "base_test Suite.Case")
        tables.write(self.root, "engine/base", {"one_more": result}, ["one_more"])
        (self.root / tables.PAGE).write_text(tables.page(self.root, self.read()))

    def waiting(self, again: str | None = None) -> list[lists.Mutation]:
        with contextlib.redirect_stdout(io.StringIO()) as self.told:
            return run.waiting(self.root, self.read(), again)

    def test_what_has_a_result_waits_for_nothing(self):
        self.assertEqual(len(self.waiting()), 1)
        self.record(DIED)
        self.assertEqual(self.waiting(), [])
        self.assertEqual(self.waiting(LIVED), [])
        self.assertEqual(len(self.waiting(DIED)), 1)
        self.assertEqual(len(self.waiting(run.ANY)), 1)

    def test_a_changed_place_is_told_and_run_again(self):
        self.record(DIED, "000000000000")
        self.assertEqual(len(self.waiting()), 1)
        self.assertIn("engine/base one_more: its place has changed", self.told.getvalue())

    def test_what_lives_needs_a_reason(self):
        self.record(LIVED)
        self.assert_finds(tables.check(self.root, self.read()), "engine/base one_more", "lives")
        self.write("tests/mutation/rooms/engine_base.toml", LIST + 'lives_because = "count is never 0"\n')
        self.record(LIVED)
        self.assertEqual(tables.check(self.root, self.read()), [])
        self.assertIn("| `engine/base one_more` | count is never 0 |", tables.table(self.root, self.read()))
        self.record(DIED)
        self.assert_finds(tables.check(self.root, self.read()), "drop lives_because")

    def test_the_page_is_that_of_the_results(self):
        self.record(DIED)
        self.assertEqual(tables.check(self.root, self.read()), [])
        text = (self.root / tables.PAGE).read_text()
        self.assertTrue(text.startswith("Before.\n") and text.endswith("After.\n"))
        self.assertIn("| engine/base | 1 | 1 | 0 | 0 | 0 |", text)
        (self.root / tables.PAGE).write_text(text.replace("| 1 | 1 |", "| 1 | 0 |"))
        self.assert_finds(tables.check(self.root, self.read()), "--table")


class ScratchTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write(".gitignore", "/build/\n")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.copy = self.root / "build/mutation/tree"
        self.scratch = scratch.Scratch(self.root, self.copy, 1, [])
        self.scratch.update()

    def test_the_copy_follows_the_tree(self):
        old = (self.copy / "docs/mutation.md").stat().st_mtime_ns
        (self.root / "engine/base/count.cc").rename(self.root / "engine/base/sum.cc")
        self.scratch.update()
        self.assertTrue((self.copy / "engine/base/sum.cc").is_file())
        self.assertFalse((self.copy / "engine/base/count.cc").exists())
        self.assertFalse((self.copy / "build/mutation").exists())
        self.assertEqual((self.copy / "docs/mutation.md").stat().st_mtime_ns, old)

    def test_a_mutation_stays_in_the_copy_and_goes(self):
        mutation = self.read()[0]
        with self.scratch.mutated(mutation):
            self.assertIn("i <= count", (self.copy / mutation.file).read_text())
            self.assertEqual((self.root / mutation.file).read_text(), SOURCE)
        self.assertEqual((self.copy / mutation.file).read_text(), SOURCE)

    def test_what_must_be_generated_is_generated_before_and_after(self):
        mutation = self.read()[0]
        mutation.prepare = ["cp", "engine/base/count.cc", "engine/base/generated.cc"]
        with self.scratch.mutated(mutation):
            self.assertIn("i <= count", (self.copy / "engine/base/generated.cc").read_text())
        self.assertEqual((self.copy / "engine/base/generated.cc").read_text(), SOURCE)


class CaseTest(unittest.TestCase):
    def test_the_case_that_failed_is_found(self):
        self.assertEqual(scratch.case_in("[ RUN      ] A.B\n[  FAILED  ] A.B (3 ms)\n"), "A.B")
        self.assertEqual(scratch.case_in("FAILED ../tests/test_a.py::test_b - AssertionError\n"), "test_a.py::test_b")
        self.assertEqual(scratch.case_in("FAIL: test_b (__main__.A)\n"), "test_b")

    def test_of_a_program_that_ended_it_is_the_one_that_ran(self):
        self.assertEqual(scratch.case_in("[ RUN      ] A.B\n[       OK ] A.B\n[ RUN      ] A.C\n"), "A.C")
        self.assertEqual(scratch.case_in("killed\n"), "the program as a whole")

    def test_what_a_test_needs_is_built(self):
        self.assertEqual(scratch.targets_of("base_test"), ["base_test"])
        self.assertIn("penstockd", scratch.targets_of("integration_drain"))
        self.assertEqual(scratch.targets_of("python_client"), [])


if __name__ == "__main__":
    unittest.main()

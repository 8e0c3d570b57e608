"""Tests of the document's maker: it accepts a small tree in order and finds the fault that is put into it."""

import argparse
import pathlib
import tempfile
import unittest

import generate
import named_tests
import results
from named_tests import Test

ROWS = """# heading
== MB Micro-batches
MB-1 | one |
MB-2 | two | see MB-1
MB-3 | three | python
== BAL Balancing
BAL-D1 | four |
== S8 Items
S8_copy | five |
S8_copy_far | six | open no test yet
"""
CPP = """
TEST(Batch, Splits) {
}
TEST_F(Fixture,
       Pairs) {
}
// TEST(Batch, IsGone)
TEST(Batch, DISABLED_IsNotRun) {
"""
TABLE = """# heading
tests/unit/batch_test.cc Batch.Splits: MB-1, BAL-D1
tests/unit/batch_test.cc Fixture.Pairs: S8_copy
"""
AGAIN = "tests/unit/more_test.cc More.Again: MB-1\n"
XML = """<testsuites><testsuite name="Batch">
<testcase name="Splits/0" classname="All/Batch" status="run" result="completed"/>
<testcase name="Splits/1" classname="All/Batch" status="run" result="completed">{0}</testcase>
<testcase name="Pairs" classname="Fixture" status="run" result="skipped">
<skipped message="no GPU: none"/></testcase>
</testsuite></testsuites>"""


class DocumentTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "client").mkdir()
        self.write(generate.ROWS, ROWS)
        self.write("docs/other.md", "")
        self.write("tests/unit/batch_test.cc", CPP)
        self.write(named_tests.TABLE, TABLE)

    def write(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

    def run_it(self, *, write: bool = False, read: bool = False) -> list[str]:
        folders = [self.root / "results"] if read else []
        return generate.main(self.options(write=write, check=not write, results=folders))

    def options(self, **given: object) -> argparse.Namespace:
        usual: dict[str, object] = {"write": False, "check": False, "ran": [], "build": None, "results": []}
        return argparse.Namespace(root=self.root, **(usual | given))

    def assert_finds(self, *words: str) -> None:
        problems = "\n".join(self.run_it())
        for word in words:
            self.assertIn(word, problems)

    def document(self) -> str:
        return (self.root / generate.DOCUMENT).read_text()

    def test_a_document_in_order_passes(self):
        self.assertEqual(self.run_it(write=True), [])
        self.assertEqual(self.run_it(), [])
        line = "| BAL-D1 | four | [Splits](../tests/unit/batch_test.cc) | engine | not run |"
        self.assertIn(line, self.document())
        self.assertIn("6 rows. 3 have tests of their own, 2 in all.", self.document())
        self.assertIn("- 1: tested as", self.document())

    def test_a_new_test_and_a_removed_one_are_drift(self):
        self.run_it(write=True)
        self.write("tests/unit/more_test.cc", "TEST(More, Again) {\n")
        self.write(named_tests.TABLE, TABLE + AGAIN)
        self.assert_finds("out of date", "Again")
        (self.root / "tests/unit/more_test.cc").unlink()
        self.assert_finds("tests.txt:4: there is no such test: tests/unit/more_test.cc More.Again")
        self.write(named_tests.TABLE, TABLE.replace(": S8_copy", ": MB-1"))
        self.assert_finds("S8_copy has neither a test nor a reason")

    def test_a_line_that_names_no_test_or_no_row_is_found(self):
        self.run_it(write=True)
        for line, word in [
            ("tests/unit/batch_test.cc Batch.IsGone: MB-1", "no such test"),
            ("tests/unit/batch_test.cc Batch.Splits: MB-9", "MB-9 is no row"),
            ("tests/unit/batch_test.cc Batch.Splits: MB-1", "MB-1 is no row, or stands twice"),
        ]:
            self.write(named_tests.TABLE, TABLE + line + "\n")
            self.assert_finds(word)

    def test_a_reason_that_is_no_longer_true_is_found_and_taken_out(self):
        self.run_it(write=True)
        self.write("tests/integration/test_it.py", "def test_away(): pass\n")
        self.write(named_tests.TABLE, TABLE + "tests/integration/test_it.py test_away: S8_copy_far\n")
        self.assert_finds("S8_copy_far has a test now")
        self.assertEqual(self.run_it(write=True), [])
        self.assertIn("S8_copy_far | six |\n", (self.root / generate.ROWS).read_text())

    def test_bad_rows_are_found(self):
        for line, word in [
            ("MB-1 | twice |", "twice"),
            ("MB-4 | four | whatever", "no kind"),
            ("MB-4 | four | see MB-8", "no row"),
            ("MB-4 | four |", "neither"),
        ]:
            self.write(generate.ROWS, ROWS + line + "\n")
            self.assertTrue(any(word in problem for problem in self.run_it()), line)

    def test_a_row_that_is_seen_as_an_open_one_is_open(self):
        self.write(generate.ROWS, ROWS.replace("see MB-1", "see S8_copy_far"))
        self.run_it(write=True)
        self.assertIn("- 2: open, MB-2, S8_copy_far", self.document())

    def test_results_are_read_and_kept(self):
        self.write("results/batch.xml", XML.format(""))
        self.assertEqual(self.run_it(write=True, read=True), [])
        self.assertIn("batch_test.cc) | engine | passed |", self.document())
        self.assertIn("batch_test.cc) | engine | skipped: no GPU |", self.document())
        self.assertEqual(self.run_it(), [])
        self.write("tests/unit/more_test.cc", "TEST(More, Again) {\n")
        self.write(named_tests.TABLE, TABLE + AGAIN)
        self.run_it(write=True)
        self.assertIn("| passed<br>not run |", self.document())
        self.assertEqual(self.run_it(), [])

    def test_where_a_row_is_shown_follows_from_the_paths(self):
        self.write("tests/integration/test_it.py", "def test_over_the_wire(): pass\n")
        self.write("tests/unit/schedule/lists_test.cc", "TEST(Lists, AreInOrder) {\n")
        more = "tests/integration/test_it.py test_over_the_wire: MB-1\ntests/unit/schedule/lists_test.cc Lists.AreInOrder: MB-1\n"
        self.write(named_tests.TABLE, TABLE + more)
        self.assertEqual(self.run_it(write=True), [])
        [line] = [line for line in self.document().splitlines() if line.startswith("| MB-1 |")]
        self.assertEqual(line.split(" | ")[3], "gRPC, simulator, engine")

    def test_a_test_that_did_not_run_is_found_in_its_results(self):
        self.run_it(write=True)
        self.write("results/batch.xml", XML.format(""))
        ran = self.options(ran=[self.root / "results"])
        self.assertEqual(generate.main(ran), [])
        self.write("tests/unit/more_test.cc", "TEST(More, Again) {\n")
        self.write(named_tests.TABLE, TABLE + AGAIN)
        self.assertEqual(generate.main(ran), ["tests/unit/more_test.cc: Again: not run"])

    def test_a_failed_test_is_not_written(self):
        self.write("results/batch.xml", XML.format('<failure message="no"/>'))
        problems = self.run_it(write=True, read=True)
        self.assertEqual(problems, ["tests/unit/batch_test.cc: Splits failed"])


class FindTest(unittest.TestCase):
    def test_skipped_tests_of_python_do_not_count(self):
        marks = {"a": "skip", "b": "xfail()", "c": "skipif(x)"}
        text = "".join(f"@pytest.mark.{mark}\ndef test_{name}(): pass\n" for name, mark in marks.items())
        self.assertEqual(named_tests._python_tests("t.py", text), [Test("t.py", "", "test_c")])


class ProgramsTest(unittest.TestCase):
    def test_the_programs_list_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program")
            lines = ["Modes/Batch.", "  Splits/0  # GetParam() = 1"]
            lines += ["Local/Contract/0.  # TypeParam = T", "  Any"]
            program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
            program.chmod(0o755)
            listed = results._listed(str(program))
        self.assertIn(("Batch", "Splits"), listed)
        self.assertIn(("Contract", "Any"), listed)
        self.assertNotIn(("Contract", "Splits"), listed)


if __name__ == "__main__":
    unittest.main()

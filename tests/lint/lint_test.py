"""Tests of the checks: each accepts a small tree in order and finds the fault that is put into it."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "sanitize"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python/tools"))

import compiler
import format as format_check
import headers
import imports
import layers
import links
import ownership
import run as sanitize
import text
import thread_safety
import tidy
import tree
import unasync

LAYERS = """
base   engine/base  :      : spdlog
wire   engine/wire  : base : isal
model  engine/model : wire[spec.cc] : torch
server server       : *    : grpc
"""


class TreeTest(unittest.TestCase):
    """Builds a tree in a temporary folder."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = pathlib.Path(self._folder.name).resolve()

    def write(self, path: str, content: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

    def target(self, name: str, folder: str, sources: list[str], links: list[str] = []) -> tree.Target:
        return tree.Target(name, "STATIC_LIBRARY", folder, sources, links)

    def assert_finds(self, problems: list[str], *words: str) -> None:
        """Exactly one problem, with every word in it."""
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])


class TargetListTest(TreeTest):
    def test_paths_become_relative_and_generated_sources_are_left_out(self):
        line = f"x\tSTATIC_LIBRARY\t{self.root}/engine/x\ta.cc;{self.root}/build/g.cc;../y/b.cc\tpenstock::base\n"
        self.write("engine/x/a.cc")
        (found,) = tree.targets(self.root, line)
        self.assertEqual((found.folder, found.links), ("engine/x", ["penstock::base"]))
        self.assertEqual(found.sources, ["engine/x/a.cc", "engine/y/b.cc"])


class LayersTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write("cmake/layers.txt", LAYERS)
        for folder in ("engine/base", "engine/wire", "engine/model", "server"):
            self.write(f"{folder}/CMakeLists.txt")
        self.write("engine/base/error.h", "#include <string>\n")
        self.write("engine/wire/header.h", '#include <isa-l/crc.h>\n#include "absl/status/status.h"\n')
        self.write("engine/model/spec.cc", '#include "engine/wire/header.h"\n#include <ATen/ATen.h>\n')
        self.write("server/main.cc", '#include <grpcpp/grpcpp.h>\n#include "engine/wire/header.h"\n')
        self.targets = [self.target("penstock_wire", "engine/wire", [], ["penstock::base", "isal"])]

    def check(self):
        return layers.check(self.root, self.targets)

    def test_a_tree_in_order_passes(self):
        self.assertEqual(self.check(), [])

    def test_an_include_against_the_arrows_is_found(self):
        self.write("engine/base/error.h", '#include "engine/wire/header.h"\n')
        self.assert_finds(self.check(), "engine/base/error.h", "wire")

    def test_an_include_of_a_library_that_is_not_allowed_is_found(self):
        self.write("engine/wire/header.h", "#include <grpcpp/grpcpp.h>\n")
        self.assert_finds(self.check(), "engine/wire/header.h", "grpc")

    def test_only_the_named_file_may_use_an_exception(self):
        self.write("engine/model/layer.cc", '#include "engine/wire/header.h"\n')
        self.assert_finds(self.check(), "engine/model/layer.cc", "wire")

    def test_generated_messages_belong_to_proto_and_services_to_proto_grpc(self):
        self.write("proto/penstock/v1/tensor.proto")
        self.write("engine/base/error.h", '#include "penstock/v1/tensor.pb.h"\n')
        self.assert_finds(self.check(), "may not use proto,")
        self.write("engine/base/error.h", '#include "penstock/v1/tensor.grpc.pb.h"\n')
        self.assert_finds(self.check(), "may not use proto_grpc,")

    def test_a_circle_of_folders_within_a_room_is_found(self):
        self.write("engine/wire/parts/part.h", '#include "engine/wire/header.h"\n')
        self.assertEqual(self.check(), [])
        self.write("engine/wire/more/more.h", '#include "engine/wire/parts/part.h"\n')
        self.write("engine/wire/header.cc", '#include "engine/wire/more/more.h"\n')
        problems = self.check()
        self.assertEqual(len(problems), 3, problems)  # one for each include of the circle
        self.assertIn("engine/wire/header.cc includes engine/wire/more/more.h", problems[0])

    def test_an_unknown_library_is_found(self):
        self.write("engine/base/error.h", "#include <boost/any.hpp>\n")
        self.assert_finds(self.check(), "boost/any.hpp")

    def test_a_link_against_the_arrows_is_found(self):
        self.targets.append(self.target("penstock_base", "engine/base", [], ["penstock::wire"]))
        self.assert_finds(self.check(), "penstock_base", "penstock::wire")

    def test_a_link_within_a_room_passes(self):
        self.targets.append(self.target("penstock_heap", "server", [], []))
        self.targets.append(self.target("penstockd", "server", [], ["penstock::heap"]))
        self.assertEqual(self.check(), [])
        self.targets.append(self.target("penstock_base", "engine/base", [], ["penstock::heap"]))
        self.assert_finds(self.check(), "penstock_base", "penstock::heap")

    def test_a_link_to_a_library_that_is_not_allowed_is_found(self):
        self.targets.append(self.target("penstock_base", "engine/base", [], ["gRPC::grpc++"]))
        self.assert_finds(self.check(), "penstock_base", "grpc")

    def test_a_link_to_an_unknown_library_is_found(self):
        self.targets.append(self.target("penstock_base", "engine/base", [], ["Boost::any"]))
        self.assert_finds(self.check(), "Boost::any")

    def test_a_room_that_is_not_listed_is_found(self):
        self.write("engine/new/CMakeLists.txt")
        self.write("engine/new/a.cc", "")
        self.targets.append(self.target("penstock_new", "engine/new", []))
        problems = self.check()
        self.assertEqual(len(problems), 2, problems)

    def test_a_listed_room_that_does_not_exist_is_found(self):
        self.write("cmake/layers.txt", LAYERS + "ghost engine/ghost : : \n")
        self.assert_finds(self.check(), "ghost")

    def test_a_room_may_not_use_one_below_it(self):
        self.write("cmake/layers.txt", LAYERS.replace("base   engine/base  :  ", "base   engine/base  : wire"))
        self.assert_finds(self.check(), "room base uses wire")


class OwnershipTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write("engine/x/a.cc", '#include "engine/x/a.h"\n')
        self.write("engine/x/a.h", '#include "engine/x/b.h"\n')
        self.write("engine/x/b.h")
        self.write("tests/shell/start_test.py")
        self.targets = [self.target("x", "engine/x", ["engine/x/a.cc"])]

    def check(self):
        return ownership.check(self.root, self.targets, [["/usr/bin/python3", f"{self.root}/tests/shell/start_test.py"]])

    def test_a_tree_in_order_passes(self):
        self.assertEqual(self.check(), [])

    def test_a_source_without_target_is_found(self):
        self.write("engine/x/forgotten.cc")
        self.assert_finds(self.check(), "engine/x/forgotten.cc")

    def test_a_header_that_nobody_includes_is_found(self):
        self.write("engine/x/forgotten.h")
        self.assert_finds(self.check(), "engine/x/forgotten.h")

    def test_a_header_that_only_a_forgotten_header_includes_is_found_too(self):
        self.write("engine/x/forgotten.h", '#include "engine/x/deep.h"\n')
        self.write("engine/x/deep.h")
        self.assertEqual(len(self.check()), 2)

    def test_a_test_script_that_ctest_does_not_run_is_found(self):
        self.write("tests/shell/lost_test.py")
        self.assert_finds(self.check(), "tests/shell/lost_test.py")

    def test_a_folder_given_to_a_test_runner_covers_its_scripts(self):
        self.write("client/python/tests/test_client.py")
        commands = [["pytest", f"{self.root}/client/python/tests"], ["x", f"{self.root}/tests/shell/start_test.py"]]
        self.assertEqual(ownership.check(self.root, self.targets, commands), [])


class ImportsTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write("client/python/penstock/__init__.py", "from penstock.a import A\n")
        self.write("client/python/penstock/a.py", "import os\nfrom penstock import b\n")
        self.write("client/python/penstock/b.py", "import threading\n")

    def test_arrows_one_way_pass(self):
        self.assertEqual(imports.check(self.root), [])

    def test_a_circle_is_found_once(self):
        self.write("client/python/penstock/b.py", "from penstock.a import A\n")
        self.assert_finds(imports.check(self.root), "penstock.a -> penstock.b -> penstock.a")
        self.assertEqual(len(imports.check(self.root)), 1)

    def test_an_import_for_types_and_one_in_a_function_close_a_circle_too(self):
        self.write("client/python/penstock/b.py", "if TYPE_CHECKING:\n    import penstock.a\n")
        self.assert_finds(imports.check(self.root), "penstock.a -> penstock.b")
        self.write("client/python/penstock/b.py", "def f():\n    from penstock.a import A\n")
        self.assert_finds(imports.check(self.root), "penstock.a -> penstock.b")

    def test_a_name_taken_from_the_package_itself_closes_a_circle(self):
        self.write("client/python/penstock/b.py", "from penstock import A\n")
        self.assert_finds(imports.check(self.root), "penstock")


class UnasyncTest(unittest.TestCase):
    def test_async_and_await_go_wherever_they_stand(self):
        source = "async def f(x):\n    async with x:\n        return (await g(x)), [await y async for y in x]\n"
        self.assertEqual(
            unasync.synchronous(source), "def f(x):\n    with x:\n        return (g(x)), [y for y in x]\n"
        )

    def test_imports_lead_to_the_synchronous_package(self):
        source = "from penstock.aio.connection import Connection\nfrom penstock.aiox import a\n"
        expected = "from penstock.connection import Connection\nfrom penstock.aiox import a\n"
        self.assertEqual(unasync.synchronous(source), expected)

    def test_names_of_protocols_change(self):
        source = "async def f() -> AsyncIterator[int]:\n    async with aclosing(g()) as x:\n        return await anext(x)\n"
        expected = "def f() -> Iterator[int]:\n    with closing(g()) as x:\n        return next(x)\n"
        self.assertEqual(unasync.synchronous(source), expected)

    def test_a_name_without_a_synchronous_one_is_refused(self):
        with self.assertRaisesRegex(ValueError, "line 2: 'asyncio' has no synchronous name"):
            unasync.synchronous("async def f():\n    await asyncio.sleep(1)\n")

    def test_words_in_texts_stay(self):
        source = '"""They await an async answer."""  # await\nawaited = 1\n'
        self.assertEqual(unasync.synchronous(source), source)

    def test_an_await_at_the_end_of_a_line_is_refused(self):
        with self.assertRaisesRegex(ValueError, "line 2"):
            unasync.synchronous("async def f(x):\n    return (await\n        x)\n")


class ClangTest(TreeTest):
    """The checks that need clang."""

    def setUp(self):
        super().setUp()
        self.write("engine/x/a.h", "#pragma once\n#include <string>\ninline std::string Name() { return {}; }\n")
        self.write("engine/x/a.cc", '#include "engine/x/a.h"\n')
        command = f"/usr/bin/ccache g++ -I{self.root} -O2 -std=c++20 -o a.o -c {self.root}/engine/x/a.cc"
        entry = {"directory": str(self.root), "command": command, "file": f"{self.root}/engine/x/a.cc"}
        self.write("build/compile_commands.json", json.dumps([entry]))
        self.build = self.root / "build"

    def test_headers_in_order_pass(self):
        self.write("engine/x/alone.h", "#pragma once\nstruct Alone {};\n")
        self.assertEqual(headers.check(self.root, self.build), [])

    def test_a_header_that_does_not_compile_alone_is_found(self):
        self.write("engine/x/needy.h", "#pragma once\ninline std::string Name() { return {}; }\n")
        self.assert_finds(headers.check(self.root, self.build), "engine/x/needy.h", "std")

    def test_a_header_whose_source_includes_another_one_first_must_compile_alone(self):
        self.write("engine/x/a.cc", '#include <string>\n#include "engine/x/a.h"\n')
        self.assertEqual(headers.check(self.root, self.build), [])
        self.write("engine/x/a.h", "#pragma once\ninline std::string Name() { return {}; }\n")
        self.assert_finds(headers.check(self.root, self.build), "engine/x/a.h", "std")

    def test_a_header_without_pragma_once_is_found(self):
        self.write("engine/x/a.h", "struct A {};\n")
        self.assert_finds(headers.check(self.root, self.build), "engine/x/a.h", "#pragma once")

    def test_headers_that_include_the_large_one_through_others_are_told(self):
        self.write("engine/x/tensor.h", f"#pragma once\n#include <{headers.LARGE}>\n")
        self.write("engine/x/user.h", '#pragma once\n#include "engine/x/tensor.h"\n')
        self.write("engine/x/other.h", "#pragma once\n#include <string>\n")
        self.assertEqual(headers.including(self.root, headers.LARGE), {"engine/x/tensor.h", "engine/x/user.h"})

    def test_a_header_beside_the_large_one_must_compile_alone_too(self):
        self.write(f"fake/{headers.LARGE}", "#pragma once\nstruct Tensor {};\n")
        entry = {"directory": str(self.root), "command": f"g++ -I{self.root} -isystem {self.root}/fake -std=c++20 -c x.cc"}
        self.write("build/compile_commands.json", json.dumps([entry | {"file": f"{self.root}/engine/x/a.cc"}]))
        self.write("engine/x/tensor.h", f"#pragma once\n#include <{headers.LARGE}>\ninline Tensor Make() {{ return {{}}; }}\n")
        self.assertEqual(headers.check(self.root, self.build), [])
        self.write("engine/x/needy.h", '#pragma once\n#include "engine/x/tensor.h"\ninline std::string Name();\n')
        self.assert_finds(headers.check(self.root, self.build), "engine/x/needy.h", "std")

    GUARDED = """#include "absl/synchronization/mutex.h"
    struct Counter {
      void Add() { %s ++count; }
      absl::Mutex mutex;
      int count ABSL_GUARDED_BY(mutex) = 0;
    };
    """

    def test_a_guarded_member_touched_under_its_lock_passes(self):
        self.write("engine/x/a.cc", self.GUARDED % "absl::MutexLock lock(&mutex);")
        self.assertEqual(thread_safety.check(self.root, self.build), [])

    def test_a_guarded_member_touched_without_its_lock_is_found(self):
        self.write("engine/x/a.cc", self.GUARDED % "")
        self.assert_finds(thread_safety.check(self.root, self.build), "engine/x/a.cc", "requires holding mutex 'mutex'")

    def test_locks_in_an_included_header_count(self):
        self.write("engine/x/a.h", "#pragma once\n" + self.GUARDED % "")
        self.write("engine/x/a.cc", '#include "engine/x/a.h"\n')
        self.assert_finds(thread_safety.check(self.root, self.build), "requires holding")

    def test_what_another_build_compiles_by_clang_is_left_out(self):
        self.write("engine/x/a.cc", self.GUARDED % "")
        self.assertEqual(thread_safety.check(self.root, self.build, {"engine/x/a.cc"}), [])

    def test_sources_of_programs_are_those_of_their_libraries_too(self):
        def target(name, sources, links):
            return tree.Target(name, "STATIC_LIBRARY", "engine/x", sources, links)

        targets = [
            target("a_test", ["a_test.cc"], ["penstock::a"]),
            target("penstock_a", ["a.cc"], ["penstock::b", "absl::strings"]),
            target("penstock_b", ["b.cc"], ["penstock::a"]),
            target("penstock_c", ["c.cc"], []),
        ]
        self.assertEqual(thread_safety.sources_of(["a_test"], targets), {"a_test.cc", "a.cc", "b.cc"})

    def test_a_tree_without_locks_is_suspicious(self):
        self.assert_finds(thread_safety.check(self.root, self.build), "no source with locks")

    def test_switches_keep_include_paths_and_drop_outputs(self):
        words = "cmake -E env A=1 ccache c++ -I/a -isystem /b -DX=1 -Wall -std=c++20 -o x.o -c x.cc".split()
        self.assertEqual(compiler._switches(words, "/f"), ["-I/a", "-isystem", "/b", "-DX=1", "-std=c++20"])

    def test_a_unity_build_s_commands_are_those_of_its_sources(self):
        self.write("engine/x/b.cc", '#include "engine/x/a.h"\n')
        self.write("build/engine/Unity/unity_0_cxx.cxx", "".join(
            f'/* a comment */\n#include "{self.root}/engine/x/{name}.cc"\n' for name in "ab"))
        command = f"g++ -DX=1 -std=c++20 -c {self.root}/build/engine/Unity/unity_0_cxx.cxx"
        entry = {"directory": str(self.root), "command": command,
                 "file": f"{self.root}/build/engine/Unity/unity_0_cxx.cxx"}
        self.write("build/compile_commands.json", json.dumps([entry]))
        commands = compiler.Commands(self.root, self.build)
        self.assertEqual(commands.files(), ["engine/x/a.cc", "engine/x/b.cc"])
        self.assertEqual(commands.switches("engine/x/b.cc"), ["-DX=1", "-std=c++20"])
        unit = "build/engine/Unity/unity_0_cxx.cxx"
        self.assertEqual(commands.units(), {unit: ["engine/x/a.cc", "engine/x/b.cc"]})
        self.assertEqual(commands.switches(unit), ["-DX=1", "-std=c++20"])

    def test_tidy_code_passes_and_use_after_move_is_found(self):
        self.write(".clang-tidy", "Checks: '-*,bugprone-use-after-move'\nWarningsAsErrors: '*'\n")
        self.write("engine/base/a.cc", "#include <string>\nstd::string F(std::string a) { return std::move(a); }\n")
        command = f"g++ -std=c++20 -c {self.root}/engine/base/a.cc"
        entry = {"directory": str(self.root), "command": command, "file": f"{self.root}/engine/base/a.cc"}
        self.write("build/compile_commands.json", json.dumps([entry]))
        self.assertEqual(tidy.check(self.root, self.build), [])
        self.write("engine/base/a.cc", "#include <string>\nvoid G(std::string);\nvoid F(std::string a) { G(std::move(a)); G(a); }\n")
        self.assert_finds(tidy.check(self.root, self.build), "engine/base/a.cc", "used after it was moved")

    def test_tidy_finds_faults_in_every_source_of_a_unit(self):
        self.write(".clang-tidy", "Checks: '-*,modernize-use-nullptr'\nWarningsAsErrors: '*'\nHeaderFilterRegex: '/engine/'\n")
        for name in "ab":
            self.write(f"engine/base/{name}.cc", f"int* {name}() {{ return 0; }}\n")
        unit = f"{self.root}/build/engine/base/Unity/unity_0_cxx.cxx"
        self.write("build/engine/base/Unity/unity_0_cxx.cxx", "".join(
            f'#include "{self.root}/engine/base/{name}.cc"\n' for name in "ab"))
        entry = {"directory": str(self.root), "command": f"g++ -std=c++20 -c {unit}", "file": unit}
        self.write("build/compile_commands.json", json.dumps([entry]))
        self.assert_finds(tidy.check(self.root, self.build), "engine/base/a.cc:1", "engine/base/b.cc:1", "use nullptr")

    def test_tidy_finds_a_using_declaration_that_is_not_used(self):
        self.assertEqual(tidy.unused_using("using a::B;\nusing ::c::D;\nB b;  // and no D\n"), ["D"])

    def test_formatted_code_passes_and_other_code_is_found(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("engine/x/a.h", "#pragma once\n\nint Answer();\n")
        self.assertEqual(format_check.check(self.root), [])
        self.write("engine/x/a.h", "#pragma once\n\nint   Answer( );\n")
        self.assertTrue(format_check.check(self.root))
        self.assertIn("engine/x/a.h", format_check.check(self.root)[0])


class LinksTest(TreeTest):
    def check(self, page: str):
        self.write("docs/page.md", page)
        return links.check_page(self.root, pathlib.Path("docs/page.md"))

    def setUp(self):
        super().setUp()
        self.write("docs/other.md", "# One heading\n\n## `Code` and more!\n")
        self.write("engine/base/error.h")
        self.write("engine/base/error.cc")

    def test_links_that_resolve_pass(self):
        page = "[a](other.md) [b](other.md#one-heading) [c](other.md#code-and-more) [d](../engine/base/) [e](#top)\n# Top\n"
        self.assertEqual(self.check(page + "`engine/base/error.{h,cc}` `engine/base/error` `./engine/base` https://example.org [f](https://x)"), [])

    def test_a_link_to_nothing_is_found(self):
        self.assert_finds(self.check("see [a](gone.md)"), "gone.md")

    def test_a_link_to_a_missing_heading_is_found(self):
        self.assert_finds(self.check("see [a](other.md#two)"), "other.md#two")

    def test_a_named_path_that_does_not_exist_is_found(self):
        self.assert_finds(self.check("see `engine/base/{error,gone}.h`"), "engine/base/gone.h")

    def test_code_blocks_are_not_read(self):
        self.assertEqual(self.check("```\n[a](gone.md) `engine/gone.h`\n```\n"), [])


class TextTest(TreeTest):
    def check(self, path: str, content: str):
        return text.check_file(pathlib.Path(path), content)

    def test_ordinary_text_passes(self):
        self.assertEqual(self.check("engine/x/a.cc", "#include <vector>\nint threads = 2;  // homework/roots\n"), [])

    def test_each_rule_finds_its_fault(self):
        faults = {
            "docs/a.md": "run /home/somebody/x",
            "engine/x/b.cc": "// TODO: later",
            "engine/x/c.cc": "std::thread t;",
            "engine/x/d.h": "std::mutex m;",
            "tests/unit/e.cc": "std::this_thread::sleep_for(x);",
            "engine/x/f.h": "#define LOG(x) x",
            "engine/x/g.cc": "#include <torch/torch.h>",
            "engine/x/h.cc": "using namespace std;",
            "engine/x/i.cc": "  } catch (const std::exception& error) {",
        }
        self.assertEqual(len(faults), len(text.RULES))
        for path, line in faults.items():
            self.assert_finds(self.check(path, line), path)

    def test_names_that_say_nothing_are_found(self):
        self.assert_finds(self.check("engine/x/string_utils.h", ""), "says nothing")
        self.assert_finds(self.check("engine/common/a.cc", ""), "says nothing")
        self.assertEqual(self.check("engine/x/commonality.cc", ""), [])

    def test_the_path_of_the_checkout_is_found(self):
        self.write("docs/a.md", f"see {self.root}/docs")
        self.assertTrue(any("path of this checkout" in problem for problem in text.check(self.root)))


class SanitizedTest(unittest.TestCase):
    LISTING = "# comment\na_test  asan-ubsan tsan\nb_test  tsan  # reason\n"

    def test_programs_are_listed_by_preset(self):
        self.assertEqual(sanitize.programs_of(self.LISTING, "tsan"), ["a_test", "b_test"])
        self.assertEqual(sanitize.programs_of(self.LISTING, "asan-ubsan"), ["a_test"])

    def test_an_unknown_preset_an_empty_line_and_an_empty_list_are_faults(self):
        for listing in ("a_test msan\n", "a_test\n", "# nothing\n", "b_test tsan\n"):
            with self.assertRaises(ValueError):
                sanitize.programs_of(listing, "asan-ubsan")


if __name__ == "__main__":
    unittest.main()

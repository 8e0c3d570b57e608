"""The status pages in Debian's Chromium: what a script keeps fresh, what is left without scripts, and the keyboard alone.

Needs the package chromium (apt-get install --no-install-recommends chromium); skipped where it is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import penstock
import pytest

import chromium
from conftest import StartDaemon  # type: ignore[attr-defined]
from daemon_process import Daemon
from small_models import create_mlp, mlp_batch

PAGES = ["/", "/statusz", "/pipeline?name=shown", "/queuez", "/handlez", "/memory", "/checkpointz", "/tracez", "/logz", "/flagz"]

# Of the page of a pipeline: the number of finished steps.
STEPS = "Number([...document.querySelectorAll('dt')].find(d => d.textContent == 'finished steps').nextSibling.textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    if chromium.missing():
        pytest.skip(chromium.missing())
    with chromium.Browser() as one:
        yield one


@pytest.fixture(scope="module")
def shown(daemon: Daemon) -> Iterator[penstock.Pipeline]:
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "shown")
        pipeline.train_step(*mlp_batch(0))
        yield pipeline


def url(daemon: Daemon, path: str) -> str:
    return f"http://{daemon.admin_address}{path}"


def test_with_scripts_the_page_follows_the_training_without_a_reload(
    daemon: Daemon, shown: penstock.Pipeline, browser: chromium.Browser
) -> None:
    stop = threading.Event()

    def train() -> None:
        while not stop.wait(0.05):
            shown.train_step(*mlp_batch(1))

    trainer = threading.Thread(target=train)
    page = browser.open(url(daemon, "/pipeline?name=shown"))
    page.evaluate("window.sameDocument = true")
    trainer.start()
    try:
        for _ in range(3):
            before = page.evaluate(STEPS)
            page.await_true(f"{STEPS} > {before}")
        assert page.evaluate("window.sameDocument") is True, "it was loaded anew"
        assert page.evaluate("document.querySelectorAll('svg.gantt rect').length") > 10
    finally:
        stop.set()
        trainer.join()


def test_without_scripts_nothing_moves_and_everything_is_there(
    daemon: Daemon, shown: penstock.Pipeline, browser: chromium.Browser
) -> None:
    page = browser.open(url(daemon, "/pipeline?name=shown"), scripts=False)
    assert page.evaluate("document.documentElement.classList.contains('scripted')") is False
    before = page.evaluate(STEPS)
    shown.train_step(*mlp_batch(1))
    followed = browser.open(url(daemon, "/pipeline?name=shown"))
    followed.await_true(f"{STEPS} > {before}")
    assert page.evaluate(STEPS) == before
    for path in PAGES:
        plain, lively = (browser.open(url(daemon, path), scripts=scripts) for scripts in (False, True))
        for what in ("document.querySelectorAll('section').length", "document.querySelectorAll('main a').length"):
            assert plain.evaluate(what) == lively.evaluate(what)
        assert plain.evaluate("document.querySelectorAll('section').length") > 0
        assert len(plain.evaluate("document.querySelector('main').innerText")) > 60
        assert plain.evaluate("[...document.querySelectorAll('button')].every(b => b.offsetParent === null)")


@pytest.mark.parametrize("path", PAGES)
def test_the_policy_hinders_nothing_of_ours(
    daemon: Daemon, shown: penstock.Pipeline, browser: chromium.Browser, path: str
) -> None:
    """Style and script are loaded, and no part of the page is wider than the window."""
    page = browser.open(url(daemon, path))
    assert page.evaluate("getComputedStyle(document.querySelector('section')).borderTopStyle") == "solid"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    narrow = browser.open(url(daemon, path), width=420)
    assert narrow.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_log_level_changes_by_keyboard(daemon: Daemon, browser: chromium.Browser) -> None:
    page = browser.open(url(daemon, "/logz"))
    level = "document.querySelector('#log dd').textContent"
    assert page.evaluate(level) == "info"
    for wanted in ("debug", "info"):
        for _ in range(40):
            page.press("Tab")
            if page.evaluate("document.activeElement.textContent") == f"set {wanted}":
                break
        page.press("Enter")
        page.await_true(f"{level} == '{wanted}'")


def test_the_focus_stays_while_the_page_changes(
    daemon: Daemon, shown: penstock.Pipeline, browser: chromium.Browser
) -> None:
    page = browser.open(url(daemon, "/"))
    page.evaluate("document.querySelector('main td a').focus(); document.querySelector('main').old = true")
    page.await_true("document.querySelector('main').old === undefined")
    assert page.evaluate("document.activeElement.textContent") == "shown"


def test_every_link_is_reached_by_tab(daemon: Daemon, shown: penstock.Pipeline, browser: chromium.Browser) -> None:
    page = browser.open(url(daemon, "/statusz"), scripts=False)
    links = page.evaluate("document.links.length")
    reached = set()
    for _ in range(links):
        page.press("Tab")
        reached.add(page.evaluate("document.activeElement.href"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert reached == set(page.evaluate("[...document.links].map(a => a.href)"))


def test_a_page_says_when_the_daemon_is_away(start_daemon: StartDaemon, browser: chromium.Browser) -> None:
    going = start_daemon("--drain-announce=0s")
    page = browser.open(f"http://{going.admin_address}/statusz")
    before = page.evaluate("document.querySelector('main').innerText")
    going.kill()
    page.await_true("document.documentElement.classList.contains('stale')")
    assert page.evaluate("document.querySelector('main').innerText")[:20] == before[:20]


def test_the_script_rests_while_nobody_looks(daemon: Daemon, browser: chromium.Browser) -> None:
    page = browser.open(url(daemon, "/"))
    asked = "performance.getEntriesByType('resource').filter(e => e.initiatorType == 'fetch').length"
    page.evaluate(
        "window.away = true; window.looks = 0;"
        "Object.defineProperty(document, 'hidden', {get: () => { window.looks += 1; return window.away; }})"
    )
    page.await_true("window.looks >= 1")  # what was under way is done
    before = page.evaluate(asked)
    page.await_true("window.looks >= 3")
    assert page.evaluate(asked) == before
    page.evaluate("window.away = false")
    page.await_true(f"{asked} > {before}")

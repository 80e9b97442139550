"""JupyterLab as `make lab` starts it: on the guides, with the whole repository in reach, as any
user, and with charts that are drawn without a network.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import pytest
from browsers import Reader, wait
from notebooks import ROOT
from waiting import until

HERE = {"127.0.0.1", "localhost"}
CHART = """from llmbench.report.charts import throughput_chart

rows = [{"strategy": "ddp", "world_size": 2, "tokens_per_s": 100.0},
        {"strategy": "<script>window.struck = 1</script>", "tokens_per_s": 50.0}]
throughput_chart(rows)"""


def recipe(folder: Path, arguments: str) -> list[str]:
    """What `make lab` does in a folder once its packages are installed, without the set-up."""
    typed = ["make", "-n", "-f", ROOT / "Makefile", "lab", f"LAB_ARGS={arguments}"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(typed, cwd=folder, env=alone, capture_output=True, text=True, check=True)
    lines = done.stdout.replace("\\\n", " ").splitlines()
    first = next(
        i for i, line in enumerate(lines) if "jupyter lab" in line or "You are root" in line
    )
    return lines[first:]


def test_make_lab_passes_arguments_and_allows_root_only_to_root(tmp_path):
    said = recipe(tmp_path, "--no-browser --port 9999")
    typed = shlex.split(said[-1])
    assert typed[-3:] == ["--no-browser", "--port", "9999"]
    assert f"--ServerApp.root_dir={tmp_path}" in typed
    is_root = os.getuid() == 0
    assert ("--allow-root" in typed) == is_root == ("You are root" in said[0])


def test_make_lab_as_another_user_says_nothing_of_root(tmp_path):
    """`id` is what decides; here it is a program that answers as for another user."""
    other = tmp_path / "id"
    other.write_text("#!/bin/sh\necho 1000\n")
    other.chmod(0o755)
    typed = ["make", "-n", "-f", ROOT / "Makefile", "lab"]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(typed, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "jupyter lab" in done.stdout
    assert "allow-root" not in done.stdout and "You are root" not in done.stdout


def notebook(path: Path, *sources: str) -> None:
    cells = [
        {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "source": source}
        | {"execution_count": None, "outputs": []}
        for i, source in enumerate(sources)
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A small project with the recipe's own JupyterLab on a port that the system chooses."""
    pytest.importorskip("jupyterlab", reason="needs jupyterlab (pip install 'llmbench[lab]')")
    folder = tmp_path_factory.mktemp("project")
    (folder / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    (folder / "nbs" / "guides").mkdir(parents=True)
    (folder / "results").mkdir()
    (folder / "reports").symlink_to(ROOT / "reports")
    shutil.copy(ROOT / "nbs/guides/25_explore.ipynb", folder / "nbs/guides")
    notebook(folder / "nbs/guides/index.ipynb", "'the guides'")
    notebook(folder / "results/chart.ipynb", CHART)
    arguments = (
        "--no-browser --ServerApp.port=0 --IdentityProvider.token=secret --expose-app-in-browser"
    )
    log = (folder / "log").open("w")
    env = os.environ | {"JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
    env |= {
        name: str(folder / name)
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR",
        )
    }
    command = recipe(folder, arguments)[-1].strip().removeprefix("@")
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, stdout=log, stderr=log, env=env, start_new_session=True
    )
    try:
        yield folder, address(process, folder)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def address(process: subprocess.Popen, folder: Path) -> str:
    """Where it listens, once it answers."""

    def answers() -> str | None:
        log = (folder / "log").read_text()
        if found := re.search(r"http://(?:127\.0\.0\.1|localhost):(\d+)/", log):
            url = f"http://127.0.0.1:{found[1]}"
            with suppress(OSError):
                urllib.request.urlopen(f"{url}/api?token=secret", timeout=5)
                return url
        return None

    log = folder / "log"
    return until(answers, 120, every_s=0.3, process=process, message=log.read_text)


def asked_to_run(driver) -> bool:
    """Whether the cells run; until the notebook is ready, JupyterLab ignores the command."""
    begun = (
        "[...document.querySelectorAll('.jp-InputPrompt')].some(p => /[*0-9]/.test(p.innerText))"
    )
    if not driver.execute_script(f"return {begun}"):
        driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    return driver.execute_script(f"return {begun}")


def run_all(driver, url: str, path: str, drawn: str) -> list[str]:
    """Open a notebook in JupyterLab, run its cells, wait for `drawn`; the hosts that were asked."""
    reader = Reader(driver, Path("/"))
    reader.requests()
    driver.get(f"{url}/lab/tree/{path}?token=secret&reset")
    ready = "!!document.querySelector('.jp-NotebookPanel .jp-CodeCell') && !!window.jupyterapp"
    wait(driver, lambda d: d.execute_script(f"return {ready}"), 240, "no notebook")
    wait(driver, lambda d: asked_to_run(d) and d.execute_script(f"return {drawn}"), 240, drawn)
    hosts = {urlparse(u).hostname for u in reader.requests() if u.startswith(("http", "ws"))}
    return sorted(hosts - {None})


SVG_SHOWN = """[...document.querySelectorAll('.jp-OutputArea-output img')].some(
    i => i.src.startsWith('data:image/svg') && i.complete && i.naturalWidth > 300)"""


@pytest.mark.slow
def test_the_lab_opens_on_the_guides_and_reaches_results(lab, browser):
    folder, url = lab
    browser.get(f"{url}/?token=secret")
    opened = "!!document.querySelector('.jp-NotebookPanel .jp-CodeCell')"
    wait(browser, lambda d: d.execute_script(f"return {opened}"), 240, "no notebook")
    assert urlparse(browser.current_url).path.endswith("/lab/tree/nbs/guides/index.ipynb")
    with urllib.request.urlopen(f"{url}/api/contents/results?token=secret", timeout=30) as answer:
        names = {entry["name"] for entry in json.load(answer)["content"]}
    assert names >= {"chart.ipynb"}
    if os.getuid() == 0:
        assert "Running as root is not recommended" not in (folder / "log").read_text()


@pytest.mark.slow
def test_a_chart_is_drawn_and_no_other_host_is_asked(lab, browser):
    _, url = lab
    hosts = run_all(browser, url, "results/chart.ipynb", SVG_SHOWN)
    assert set(hosts) <= HERE, hosts
    assert browser.execute_script("return window.struck") is None
    # a request to another host would have been seen
    browser.execute_script("fetch('https://charts.invalid/vega.js').catch(() => 0)")
    asked = wait(browser, lambda _: Reader(browser, Path("/")).requests(), 20, "no request")
    assert "https://charts.invalid/vega.js" in asked


PICKERS = "[...document.querySelectorAll('.jp-OutputArea-output .widget-dropdown select')]"
# The notebook goes on through all studies after its chart is there, until its kernel is idle.
EXPLORED = f"""{PICKERS}.length === 2 && !!document.querySelector('.widget-html-content svg')
    && document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"""


def pick(driver, number: int, words: str) -> None:
    """Choose an entry of a picker as a reader does; its spaces are shown as non-breaking ones."""
    chosen = f"""const p = {PICKERS}[{number}];
        p.value = [...p.options].find(o => o.text.replaceAll('\\xa0', ' ') === arguments[0]).value;
        p.dispatchEvent(new Event('change', {{bubbles: true}}))"""
    driver.execute_script(chosen, words)


@pytest.mark.slow
def test_the_explore_notebook_answers_its_pickers_without_a_network(lab, browser):
    """A click goes to the kernel, and chart, table and query change; no other host is asked."""
    _, url = lab
    hosts = run_all(browser, url, "nbs/guides/25_explore.ipynb", EXPLORED)
    shown = """[...document.querySelectorAll('.jp-OutputArea-output .widget-html-content')]
        .map(h => h.textContent).join('\\n')"""

    def says(words: str) -> bool:
        return words in browser.execute_script(f"return {shown}")

    assert says("study = 'cpu-quickstart'") and says("tokens_per_s")
    pick(browser, 0, "cpu-splits")
    wait(browser, lambda _: says("study = 'cpu-splits'"), 60, "the study was not asked")
    pick(browser, 1, "Median step time (ms)")
    wait(browser, lambda _: says("step_time_s_low"), 60, "the metric was not asked")
    drawn = "document.querySelector('.widget-html-content svg').textContent"
    assert "Median step time (ms)" in browser.execute_script(f"return {drawn}")
    reader = Reader(browser, Path("/"))
    hosts += [urlparse(u).hostname for u in reader.requests() if u.startswith(("http", "ws"))]
    assert set(hosts) <= HERE, hosts

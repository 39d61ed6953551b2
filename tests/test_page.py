"""The page: one file, nothing from outside, text stays text; sorting, filtering and records in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ledgers import failed, made_up_records

from bench.report.drawing import Drawing
from bench.report.page import Head, make_page
from bench.report.table import Entry, Table, entry

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
HEAD = Head(("about",), ("one finding", HOSTILE), ("a count: `run`",), ("Warning: none",))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def page() -> str:
    good = made_up_records("nagphormer", "photo", [91.5])[0]
    bad = failed(made_up_records("gcn", "photo", [90.0])[0], "error", HOSTILE)
    table = Table(
        "numbers",
        "Table 9: numbers",
        ("Method", "Photo"),
        (
            (entry("GCN"), Entry("error", (bad["key"],), note=HOSTILE)),
            (entry("B"), Entry("100.5 ± 1", value=100.5)),
            (entry("NAGphormer"), Entry("91.50 (1)", (good["key"],), bold=True, value=91.5)),
        ),
        (HOSTILE,),
    )
    figure = Drawing("curve", "A figure", {"png": b"\x89PNG"})
    return make_page([table, figure], [good, bad], HEAD, [("reproduced", "3")])


def test_text_from_records_cannot_leave_its_place() -> None:
    text = page()
    assert "<script>document.title" not in text and "<img src=x" not in text
    [block] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data = json.loads(block)
    assert data["parts"][0]["caption"] == [HOSTILE]
    groups = [item["group"] for row in data["parts"][0]["rows"] for item in row if "group" in item]
    statuses = [[data["records"][at][3] for at in data["groups"][group]] for group in groups]
    assert statuses == [["error"], ["ok"]]


def test_it_asks_for_nothing_from_outside() -> None:
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!#|data:)", page())
    assert not re.findall(r"https?://", page())
    assert "default-src 'none'" in page()


CHECKS = """
<script>
const shown = () => [...document.querySelectorAll("#numbers tbody tr")].filter((row) => !row.hidden);
const rows = () => shown().map((row) => row.children[0].textContent);
const texts = (place) => [...document.querySelectorAll(place)].map((element) => element.textContent);
const seen = {title: document.title, start: rows(), findings: texts("#findings li"), counts: texts("#counts li")};
seen.commands = texts("#counts code");
const header = document.querySelectorAll("#numbers thead button")[1];
header.click(); seen.ascending = rows();
header.click(); seen.descending = rows();
const search = document.querySelector("#numbers input");
search.value = "nag"; search.oninput(); seen.filtered = rows();
document.querySelector("#numbers tbody td.bold button").click();
seen.dialog = document.getElementById("dialog").open;
seen.record = [...document.querySelectorAll("#detail tbody td")].map((cell) => cell.textContent);
seen.theme = document.documentElement.dataset.theme;
document.getElementById("theme").click();
seen.other = document.documentElement.dataset.theme;
seen.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
const note = document.createElement("pre"); note.id = "seen"; note.textContent = JSON.stringify(seen);
document.body.append(note);
</script>
"""


@pytest.mark.timeout(120)
def test_it_works_in_a_browser(tmp_path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here; Debian's package is called chromium")
    file = tmp_path / "page.html"
    file.write_text(page().replace("</body>", f"{CHECKS}</body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,800", "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=110).stdout
    [text] = re.findall(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    seen = json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["title"] == "Benchmark report"
    assert seen["findings"] == ["one finding", HOSTILE]
    assert (seen["counts"], seen["commands"]) == (["a count: run", "Warning: none"], ["run"])
    assert seen["start"] == ["GCN", "B", "NAGphormer"]
    assert seen["ascending"] == ["NAGphormer", "B", "GCN"]  # numbers by value, what has none last
    assert seen["descending"] == ["B", "NAGphormer", "GCN"]
    assert seen["filtered"] == ["NAGphormer"]
    assert seen["dialog"] is True
    assert seen["record"][1:4] == ["photo", "nagphormer", "ok"] and seen["record"][6] == "91.50"
    assert {seen["theme"], seen["other"]} == {"light", "dark"}
    assert seen["wide"] is False  # on a phone, tables scroll in their own boxes

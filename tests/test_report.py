"""`hgemm report`: its input, the contents of the page, and how a browser renders it."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import measured
import pytest
from chromium import CHROMIUM, needs_chromium, opened
from conftest import ROOT, call
from hypothesis import given
from hypothesis import strategies as st
from records import make_record
from tables import shipped_kernels

from generator.build.emit import EmittedKernel, emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.errors import LibraryError
from generator.ladders.results import read as read_ladders
from generator.report.charts import Figure
from generator.report.page import COLUMNS, PACK, Entry, Report, _embedded, kernels_data
from generator.report.points import Point, kinds_of, of_sessions, read_bench
from generator.report.predictions import SIDES, fastest_table, predicted, proof_table, short_name
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.bench.work import Work
from hgemm.measured import read_sessions
from hgemm.record import Record

DATA = ROOT / "benchmarks" / "data"
SQUARES = DATA / "dispatched_turns_h200.json"
_PARTS = re.compile(r"[0-9]+|[^0-9]+")
"""Of names, by whose numbers the table is in order."""
EVIL = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)> $x^{"


def entry(kernel: EmittedKernel) -> Entry:
    """Return a kernel as it would be read from a library."""
    record, _ = make_record(kernel.symbol)
    return Entry(Record({**record, **planned_sections(kernel)}), kernel.source)


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    """Some of the shipped kernels of 16-bit operands, of every architecture."""
    shipped = [kernel for kernel in shipped_kernels() if kernel.plan.spec.operand_bytes == 2]
    return [entry(kernel) for kernel in sorted(shipped, key=lambda one: one.symbol)[::8]]


def point(**changes: Any) -> Point:
    work = Work(**{"m": 64, "n": 128, "k": 256, **changes.pop("work", {})})
    given = dict(state="steady", device="NVIDIA H200", date="2026-11-22", times_us={"a": 2.0}, ours="a", keys={})
    return Point(**{"work": work, "baseline_us": {"best": 3.0}, "ratios": {"best": 1.5}, **given, **changes})


def unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


def data_of(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


# ---- What is read ---------------------------------------------------------------------------------------------------


def test_benchmark_documents_are_read() -> None:
    document, points = json.loads(SQUARES.read_text()), read_bench(SQUARES)
    assert len(points) == len(document["results"]) == 36
    for result, one in zip(document["results"], points):
        figure = result["figures"][result["ours"]]
        assert one.tflops(one.times_us[one.ours]) == pytest.approx(figure["tflops"], rel=2e-3)
        assert one.ratio == result["ratio_best"]["median"] and set(one.baseline_us) == {"first", "best"}
        assert not [name for name in one.times_us if name.startswith("cublaslt")]
    ((kind, of_kind),) = kinds_of(points).items()
    assert str(kind) == "tn, f16 in, f32 accumulate, f16 out, steady, NVIDIA H200" and len(of_kind) == 36


def test_launch_options_of_a_kernel_count_as_one(tmp_path: Path) -> None:
    document = json.loads(SQUARES.read_text())
    result = document["results"][0]
    symbol, figures = result["ours"], result["figures"]
    result["ours"] = f"{symbol} splits=1"
    result["options"] = {f"{symbol} splits={splits}": {"splits": splits} for splits in (1, 2)}
    figures[f"{symbol} splits=2"] = {**figures[symbol], "time_us": 2 * figures[symbol]["time_us"]}
    figures[f"{symbol} splits=1"] = figures.pop(symbol)
    (tmp_path / "out.json").write_text(json.dumps(document))
    found, expected = read_bench(tmp_path / "out.json")[0], read_bench(SQUARES)[0]
    assert (found.ours, found.times_us) == (symbol, expected.times_us)


def test_later_results_and_results_with_a_baseline_win() -> None:
    first = read_bench(SQUARES)[0]
    day, minute = first.date[:10], first.date[:16]
    alone = replace(first, date=f"{minute}:30Z", baseline_us={}, ratios={})
    assert kinds_of([first, alone])[first.kind] == [first] == kinds_of([alone, first])[first.kind]
    before, after = replace(first, date=f"{day}T00:00:30Z"), replace(first, date=f"{day}T23:59:30Z")
    assert kinds_of([after, first, before])[first.kind] == [after] and kinds_of([first, before])[first.kind] == [first]


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"device": 7}, {"results": [{"work": {"m": 0}, "state": "steady"}]}, {"results": {}}]
)
def test_malformed_benchmark_file_names_its_field(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**json.loads(SQUARES.read_text()), **change}))
    with pytest.raises(LibraryError, match=next(iter(change))):
        read_bench(path)
    with pytest.raises(LibraryError, match="holds no ladders"):
        read_ladders(path)


@pytest.mark.parametrize("change", [{"ours": ["a"]}, {"refused": 7}, {"best": 1.0}])
def test_result_with_an_illegal_name_is_rejected_by_field(tmp_path: Path, change: dict[str, Any]) -> None:
    document = json.loads(SQUARES.read_text())
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**document, "results": [{**document["results"][0], **change}]}))
    with pytest.raises(LibraryError, match=next(iter(change))):
        read_bench(path)


def test_sessions_count_for_their_kernels(tmp_path: Path, entries: list[Entry]) -> None:
    record = entries[0].record
    here, other = record.symbol, entries[1].record.symbol
    problem = measured.problem(4096, 4096, 4096)
    measured.write(tmp_path, [(problem, {here: 200.0, other: 220.0})], {here: record.key})
    (one,) = of_sessions(read_sessions(tmp_path))
    assert one.times_us == {here: 200.0, other: 220.0} and one.ours == here and one.ratio is None
    rows = {row[0]: dict(zip([name for name, *_ in COLUMNS], row)) for row in kernels_data(entries, [one])["rows"]}
    assert rows[here]["tflops"] == pytest.approx(2 * 4096**3 / 200.0 * 1e-6, abs=0.1) and rows[here]["wins"] == 1
    assert rows[other]["tflops"] is None, "its content key is another"


def test_later_measurement_counts() -> None:
    old, new = point(date="2026-01-01", times_us={"a": 9.0}), point(date="2026-02-01")
    assert [*kinds_of([new, old]).values()] == [[new]]


# ---- What the page holds --------------------------------------------------------------------------------------------


def test_packed_kernels_round_trip(entries: list[Entry]) -> None:
    many = [entries[at % len(entries)] for at in range(PACK + 3)]
    data = kernels_data(many, [])
    packs = [unpacked(pack) for pack in data["packs"]]
    assert [len(pack) for pack in packs] == [PACK, 3] and len(data["rows"]) == len(many)
    for at, one in enumerate(many):
        shown = packs[at // data["pack"]][at % data["pack"]]
        assert shown["source"] == one.source and data["rows"][at][0] == one.record.symbol
        unshown = {"schema", "symbol", "inputs"}
        assert shown["record"] == {name: value for name, value in one.record.data.items() if name not in unshown}
        drawn = [] if one.record.data["spec"]["copy"] == "ldg" else ["A", "B", "T"]
        assert [says[:1] for says, _ in shown["pictures"]] == drawn and shown["model"]["bound"]
        assert all(unpacked(data["pictures"][place]).startswith("<svg") for _, place in shown["pictures"])
    assert len(data["pictures"]) == len(set(data["pictures"])) < 2 * len(entries), "alike ones are there once"


def test_kernels_that_cannot_be_drawn_have_no_pictures() -> None:
    (plan,) = sweep(
        [{"arch": "sm_80", "dtype_a": "tf32", "dtype_b": "tf32", "layout": "nn", "tile": "128x128x16"}]
    ).plans
    data = kernels_data([entry(emit(plan, templates_folder()))], [])
    assert unpacked(data["packs"][0])[0]["pictures"] == [] and data["pictures"] == []


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6))
def test_texts_cannot_end_the_embedded_data(value: Any) -> None:
    text = _embedded(value)
    assert not {*"<>&"} & {*text} and json.loads(text) == value


def test_hostile_texts_are_escaped(entries: list[Entry]) -> None:
    pytest.importorskip("matplotlib")
    points = [point(device=EVIL, times_us={EVIL: 2.0}, ours=EVIL)]
    report = Report(EVIL, [Entry(entries[0].record, EVIL)], points, [_ladder(EVIL, EVIL)], [EVIL])
    html = report.html()
    assert EVIL not in html and "<img src=x" not in html and html.count("<script") == 2
    assert unpacked(data_of(html)["packs"][0])[0]["source"] == EVIL


def _ladder(text: str, symbol: str) -> dict[str, Any]:
    published = {"tflops": 100.0, "over_before": None, "of_cublas": None}
    step = {**{name: text for name in ("name", "what", "note")}, "symbol": symbol}
    numbers = ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm", "bank_conflicts")
    sectors = dict.fromkeys(("sectors_per_request", "ideal_sectors_per_request", "predicted_tflops", "bound"))
    steps = [{**step, **dict.fromkeys(numbers, 1), **sectors, "fell": False, "published": published}]
    about = {name: text for name in ("system", "title", "source", "machine", "note")}
    work = Work(64, 64, 64).plain()
    ladder = {**about, "arch": "sm_80", "card": None, "work": work, "published_cublas": 120.0, "steps": steps}
    return {
        "kind": "ladders",
        "schema": 1,
        "device": None,
        "arch": None,
        "baseline": None,
        "ladders": [{**ladder, "baseline": None}],
    }


def test_ladders_have_a_curve_and_a_table(tmp_path: Path, entries: list[Entry]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "ladders.json"
    symbol = entries[0].record.symbol
    document = _ladder("two", symbol)
    path.write_text(json.dumps(document))
    html = Report("one", entries[:2], ladders=[read_ladders(path)]).html()
    for step in document["ladders"][0]["steps"]:
        del step["predicted_tflops"], step["bound"]  # as documents are that were kept before steps had them
    path.write_text(json.dumps(document))
    assert Report("one", entries[:2], ladders=[read_ladders(path)]).html() == html
    assert (
        'id="ladder_0-figure_1"' in html and f'<a href="#kernel={symbol}">{symbol.replace("_", "_<wbr>")}</a>' in html
    )
    del document["ladders"][0]["steps"][0]["published"]
    path.write_text(json.dumps(document))
    with pytest.raises(LibraryError, match="published is missing"):
        read_ladders(path)


def sections_of(html: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', html)


def test_without_measurements_a_report_has_predictions_bounds_and_proofs(entries: list[Entry]) -> None:
    pytest.importorskip("matplotlib")
    report = Report("one", entries)
    html = report.html()
    assert sections_of(html) == ["library", "predictions", "roofline", "resources", "proofs"]
    assert html.count("Nothing is measured yet") == 1
    figures = {figure.name: figure for figure in report.figures}
    assert {"predicted_h200", "predicted_a100", "bounds", "roofline_h200"} <= {*figures}
    assert "roofline_l40s" not in figures and "The tables of these cards have no rate of L2." in html
    empty = Report("none", []).html()
    assert sections_of(empty) == ["library"] and data_of(empty)["rows"] == []
    with_points = Report("one", entries[:4], read_bench(SQUARES)[::6]).html()
    assert {"rates", "ratios"} <= {*sections_of(with_points)} and "Nothing is measured yet" not in with_points


def test_predictions_match_the_model(entries: list[Entry]) -> None:
    from hgemm.model.cards import usual_card
    from hgemm.model.kernel import Size
    from hgemm.model.predict import report

    records = {one.record.symbol: one.record for one in entries}
    found = predicted(records.values())
    assert len(found) > len(entries) / 2
    names = [name for name, _, _ in COLUMNS]
    rows = {row[0]: dict(zip(names, row)) for row in kernels_data(entries, [])["rows"]}
    for symbol, one in [*found.items()][::9]:
        data = records[symbol].data
        card = usual_card(int(re.sub(r"\D", "", records[symbol].arch)))
        answer = report(data["spec"], data["resources"], card, Size(4096, 4096, 4096))
        assert one.usual == pytest.approx(2e-6 * 4096**3 / answer["problem"]["predicted_us"])
        assert (rows[symbol]["predicted"], rows[symbol]["bound"]) == (round(one.usual, 1), answer["bound"])
    table = fastest_table([*found.values()])["rows"]
    assert len(table) == len(SIDES) * len({one.card.key for one in found.values()})
    assert all(
        row[7] == max(round(one.rates[SIDES.index(row[1])], 1) for one in found.values() if one.card.name == row[0])
        for row in table
    )


def test_proofs_are_counted_by_architecture(entries: list[Entry]) -> None:
    first, second = (Record({**one.record.data, "arch": "sm_80"}) for one in entries[:2])
    proof = {**first.data["proof"], "shapes": ["64x64x64", "1x1x1"], "races": 0, "max_bound_ratio": 0.5}
    (row,) = proof_table([Record({**first.data, "proof": proof}), second])["rows"]
    assert row[:6] == ["sm_80", 2, 1, 2, 0, 0.5]


def test_pictures_are_reproducible_with_unique_ids(entries: list[Entry]) -> None:
    pytest.importorskip("matplotlib")
    report = Report("one", entries, read_bench(SQUARES)[::6])
    html = report.html()
    figures = {figure.name: figure for figure in report.figures}
    assert figures["rates_0"].inline() in html and figures["roofline_h200"].inline() in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len({*ids})
    referred = {*re.findall(r'(?:xlink:href="#|url\(#|aria-labelledby=")([^")=]+)[")]', html)}
    assert referred and referred <= {*ids}
    drawn = {one.record.symbol for one in entries}
    linked = {*re.findall(r'xlink:href="#kernel=([^"]+)"', html)}
    assert linked and linked <= drawn
    assert {"rates_0", "ratios_0", "roofline_h200", "roofline_a100", "resources", "occupancy"} <= {*figures}


def test_readme_pictures_match_the_data() -> None:
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("draw_measured", ROOT / "docs" / "draw_measured.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    for figure in module.pictures():
        committed = (ROOT / "docs" / f"{figure.name}.svg").read_text()
        assert words.findall(figure.svg()) == words.findall(committed), "run python docs/draw_measured.py"


# ---- The verb -------------------------------------------------------------------------------------------------------


def test_the_verb_writes_the_page_and_the_pictures(small_library: Library, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    to, png = tmp_path / "report.html", tmp_path / "pictures"
    words = ["report", "--library", small_library.folder, "--to", to, "--bench", SQUARES, "--png", png]
    done = call("hgemm", *words, "--layout", "tn,nt")
    assert done.returncode == 0, done.stderr
    data = data_of(to.read_text())
    assert {row[2] for row in data["rows"]} == {"tn", "nt"}
    written = done.stdout.split()
    assert written[0] == str(to) and {*written[1:]} == {str(path) for path in png.iterdir()}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in png.iterdir()) and len(written) > 5
    symbol = data["rows"][0][0]
    source = (small_library.folder / symbol / "kernel.cu").read_text()
    assert unpacked(data["packs"][0])[0]["source"] == source


def test_untrusted_kernels_are_skipped_with_a_note(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    library = Library(tmp_path / "library")
    for symbol in ("hgemm_one", "hgemm_two"):
        library.publish(*make_record(symbol))
    (library.folder / "hgemm_two" / "kernel.cu").write_text("other")
    done = call("hgemm", "report", "--library", library.folder, "--to", tmp_path / "a.html")
    html = (tmp_path / "a.html").read_text()
    assert done.returncode == 0 and "SHA-256 differs" in done.stderr and "Skipped 1 kernel" in html
    assert [row[0] for row in data_of(html)["rows"]] == ["hgemm_one"]


def test_bad_requests_are_reported_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    Library(tmp_path).publish(*make_record("hgemm_one"))
    to = tmp_path / "a.html"
    for words, message, status in (
        (["--to", to, "--bench", tmp_path / "none.json"], "none.json cannot be read: No such file", 1),
        (["--to", tmp_path / "no" / "a.html"], "cannot write", 1),
        (["--to", to, "--arch", "70"], "arch '70' is sm_70, which is not supported", 2),
    ):
        done = call("hgemm", "report", "--library", tmp_path, *words)
        assert done.returncode == status and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not to.exists()


def test_missing_matplotlib_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from generator.errors import HgemmError
    from generator.report.page import write_report
    from generator.store.query import KernelFilter

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HgemmError, match=r"\[plots\]"):
        next(write_report(Library(tmp_path), KernelFilter(), tmp_path / "a.html", [], [], None, print))


# ---- In a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(entries: list[Entry], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    path = tmp_path_factory.mktemp("report") / "report.html"
    points = [*read_bench(SQUARES), point(times_us={entries[0].record.symbol: 2.0}, ours=entries[0].record.symbol)]
    path.write_text(Report("a library", entries, points).html())
    return path


@needs_chromium
def test_the_table_is_filtered_by_the_address(page: Path, entries: list[Entry]) -> None:
    everything = opened(page)
    assert everything.texts("p", "count")[:1] == [f"{len(entries)} of {len(entries)} kernels"]
    ordered = sorted(
        entries, key=lambda one: [int(part) if part.isdigit() else part for part in _PARTS.findall(one.record.symbol)]
    )
    assert everything.texts("th", "rows") == [short_name(one.record.symbol) for one in ordered]
    assert everything.console == [] and "The same for all kernels: " in everything.texts("p", "same")[0]
    one_of_them = ordered[0].record
    layout = one_of_them.data["spec"]["layout"]
    some = opened(page, f"q=stages<=3 {layout}_&arch={one_of_them.arch}")
    wanted = [
        short_name(one.record.symbol)
        for one in ordered
        if one.record.arch == one_of_them.arch
        and one.record.data["spec"]["stages"] <= 3
        and f"{layout}_" in one.record.symbol
    ]
    assert some.texts("th", "rows") == wanted and 0 < len(wanted) < len(entries) and some.console == []


@needs_chromium
def test_a_kernels_page_has_source_machine_code_pictures_and_proof(page: Path, entries: list[Entry]) -> None:
    one = entries[0]
    shown = opened(page, f"kernel={one.record.symbol}")
    assert shown.console == []
    assert (
        f'data-ready="{one.record.symbol}"' in shown.html and "".join(shown.texts("h2", "kernel")) == one.record.symbol
    )
    titles = ["Spec", "Resources", "Launch", "Launch traits", "Limits by the cost model", "Proof", "Build", "Files"]
    assert shown.texts("h3", "kernel") == [*titles, "Measured", "Machine code", "Operands in shared memory", "Source"]
    (source,) = shown.texts("code", "kernel")
    assert source == " ".join(one.source.split())
    assert {"HMMA", "LDSM", "LDGSTS"} <= {*shown.texts("th", "kernel")} and "64x128x256" in shown.texts("td", "kernel")
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/svg', shown.html)) == 3
    missing = opened(page, "kernel=hgemm_none")
    assert "not in the report" in missing.html and missing.console == []


@needs_chromium
def test_the_page_fits_its_window(page: Path, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    from check_site import check_site

    (tmp_path / "report.html").write_bytes(page.read_bytes())
    _, faults = check_site(tmp_path, CHROMIUM)
    assert [fault for fault in faults if "broken anchor" not in fault] == []


@needs_chromium
def test_network_requests_would_be_detected(page: Path, tmp_path: Path) -> None:
    """The page's own rule forbids all of them; without one the console of the tests above is empty."""
    calling = tmp_path / "calling.html"
    calling.write_text(page.read_text().replace("</main>", '<img src="http://192.0.2.1/a.png" alt=""></main>'))
    assert any("192.0.2.1" in line and "Content Security Policy" in line for line in opened(calling).console)


@needs_chromium
def test_hostile_texts_do_nothing_in_a_browser(entries: list[Entry], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    symbol = entries[0].record.symbol
    path = tmp_path / "hostile.html"
    hostile = point(device=EVIL, times_us={symbol: 2.0}, ours=symbol)
    path.write_text(Report(EVIL, [Entry(entries[0].record, EVIL)], [hostile], notes=[EVIL]).html())
    for at in ("", f"kernel={symbol}", f"kernel={EVIL}", f"q={EVIL}"):
        shown = opened(path, at)
        assert shown.console == [] and "taken" not in shown.texts("title") and len(shown.texts("script")) == 2
    assert opened(path, f"kernel={symbol}").texts("code", "kernel") == [" ".join(EVIL.split())]


@needs_chromium
@pytest.mark.slow
def test_report_opens_five_thousand_kernels(entries: list[Entry], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shipped = [entry(kernel) for kernel in shipped_kernels()]
    several = [shipped[at % len(shipped)] for at in range(5000)]
    many = [
        Entry(Record({**one.record.data, "symbol": f"hgemm_{at:04}"}), one.source) for at, one in enumerate(several)
    ]
    path = tmp_path / "many.html"
    path.write_text(Report("many", many).html())
    assert path.stat().st_size < 6_000_000
    shown = opened(path, "q=hgemm_49")
    assert shown.texts("p", "count")[:1] == ["100 of 5,000 kernels"] and shown.console == []
    last = opened(path, "kernel=hgemm_4999")
    assert last.texts("code", "kernel") == [" ".join(many[-1].source.split())] and last.console == []


def test_figures_have_no_network_references() -> None:
    pytest.importorskip("matplotlib")
    figure = Figure("one", "title", "words", (3, 2), lambda canvas: canvas.add_subplot().plot([1, 2], [3, 4]))
    addresses = {*re.findall(r"https?://[^\"'<> ]+", figure.inline())}
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}

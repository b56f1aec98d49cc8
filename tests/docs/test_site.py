"""Test the documentation site: links, generated references, sentence lengths, navigation."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import yaml
from sitegen import blocks, links, site
from sitegen.error_texts import ERROR_TEXTS

from broker_lite.cli.main import COMMANDS
from broker_lite.config import BrokerConfig, TopicConfig, keys
from broker_lite.errors import TABLE
from broker_lite.server.metrics import METRICS, PREFIX
from pyspark_logbus.options import OPTIONS

README_LINES_MAX = 120
FOLDER_README_LINES_MAX = 40
WHOLE = {"broker_lite/replication/README.md", "tests/sim/README.md"}
"""READMEs of folders that are pages of the site, and may be longer than FOLDER_README_LINES_MAX."""
LONG_SHARE_MAX = 0.05
"""Maximum share of sentences longer than ``blocks.WORDS_MAX`` words in the written pages."""
NORUN_MAX = 10


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return site.pages()


def written() -> dict[str, str]:
    """Return the pages that are written by hand, not generated, by path."""
    return {
        path.relative_to(site.PAGES).as_posix(): path.read_text("utf-8")
        for path in sorted(site.PAGES.rglob("*.md"))
    }


def test_every_internal_link_leads_to_a_page_file_or_anchor(pages: dict[str, str]) -> None:
    files = {path.relative_to(site.PAGES).as_posix() for path in site.PAGES.rglob("*")}
    assert not list(links.broken(pages, files))


def test_link_check_finds_a_broken_link_and_a_broken_anchor() -> None:
    given = {
        "a/one.md": "[x](two.md#here) [y](two.md#there) ![z](no.png) [w](../b.md) `[v](no.md)`",
        "a/two.md": "# Here\n",
    }
    found = list(links.broken(given, set()))
    assert [line.split(": ")[1] for line in found] == ["two.md#there", "no.png", "../b.md"]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("# A lost disk", "a-lost-disk"),
        ("## `log.dir`, again", "logdir-again"),
        ("## Given {#given.id}", "given.id"),
    ],
)
def test_anchor_of_a_heading_equals_the_anchor_in_the_built_page(heading: str, anchor: str) -> None:
    assert list(links.anchors_of(heading)) == [anchor]


def test_navigation_lists_every_page_once(pages: dict[str, str]) -> None:
    listed = re.findall(
        r"([\w./-]+\.md)",
        (site.ROOT / "docs" / "mkdocs.yml").read_text("utf-8").partition("nav:")[2],
    )
    assert sorted(listed) == sorted(pages)


def test_configuration_of_the_site_loads_nothing_from_other_hosts() -> None:
    text = (site.ROOT / "docs" / "mkdocs.yml").read_text("utf-8")
    assert "http" not in text
    assert yaml.safe_load(text)["theme"]["font"] is False


def test_references_list_all_errors_commands_metrics_and_settings(pages: dict[str, str]) -> None:
    assert set(ERROR_TEXTS) == {row.name for row in TABLE}
    for row in TABLE:
        assert f"{{#LOGBUS_{row.name}}}" in pages["reference/errors.md"]
    for name in COMMANDS:
        assert f"## logbus {name} " in pages["reference/commands.md"]
    for metric in METRICS.values():
        assert f"`{PREFIX}{metric.name}" in pages["reference/metrics.md"]
    for option in OPTIONS:
        assert f"`{option.name}`" in pages["reference/spark-options.md"]
    for kind, name in ((BrokerConfig, "broker"), (TopicConfig, "topic")):
        for key in keys(kind).values():
            assert f"### `{key.key}`" in pages[f"reference/{name}-settings.md"]


def test_at_most_one_sentence_in_twenty_of_a_page_is_long() -> None:
    found = [(name, one) for name, text in written().items() for one in blocks.sentences(text)]
    long = [(name, one) for name, one in found if blocks.words(one) > blocks.WORDS_MAX]
    listing = "\n".join(f"{name}: {one}" for name, one in long)
    assert len(long) <= LONG_SHARE_MAX * len(found), f"{len(long)} of {len(found)}:\n{listing}"


def test_every_how_to_guide_says_how_to_check_and_how_to_undo_its_steps() -> None:
    guides = [name for name in written() if name.startswith("how-to/")]
    assert guides
    for name in guides:
        assert "**Check.**" in written()[name], name
        assert "**Undo.**" in written()[name], name


def test_lists_follow_a_blank_line_and_nest_by_four_spaces(pages: dict[str, str]) -> None:
    """The site shows lists of another form as running text, or without their nesting."""
    item, wrong = r"(?:[*-]|\d+\.) ", []
    for name, text in pages.items():
        lines = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S).splitlines()
        for before, line in itertools.pairwise(lines):
            begins = re.match(item, line) and before and not re.match(rf"\s*{item}| {{2,}}", before)
            if begins or re.match(rf" {{1,3}}{item}", line):
                wrong.append(f"{name}: {line}")
    assert not wrong


def test_sentence_count_of_a_page_excludes_code_and_tables() -> None:
    text = "# A long title\n\nOne two three. Four five six!\n\n| a | b c |\n\n- seven eight nine\n"
    assert list(blocks.sentences(text)) == ["One two three.", "Four five six!", "seven eight nine"]


def test_few_code_blocks_are_excluded_from_the_tests_and_each_states_a_reason() -> None:
    found = [
        (name, block)
        for name, text in written().items()
        for block in blocks.blocks(text)
        if block.language in ("python", "sh") and block.reason
    ]
    assert len(found) <= NORUN_MAX
    for name, block in found:
        assert len(block.reason.split()) >= 3, f"{name}:{block.line}"


def test_readmes_stay_within_their_line_limits() -> None:
    assert len((site.ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MAX
    for path in (
        *site.ROOT.glob("broker_lite/**/README.md"),
        *(site.ROOT / folder / "README.md" for folder in ("benchmarks", "pyspark_logbus")),
    ):
        name = path.relative_to(site.ROOT).as_posix()
        if name not in WHOLE:
            lines = path.read_text("utf-8").splitlines()
            assert len(lines) <= FOLDER_README_LINES_MAX, f"{name}: {len(lines)} lines"


def test_links_of_readmes_lead_to_files() -> None:
    for path in (site.ROOT / "README.md", site.ROOT / "CONTRIBUTING.md",
                 *site.ROOT.glob("*/**/README.md")):  # fmt: skip
        folders = path.relative_to(site.ROOT).parts
        if "_build" in folders or any(name.startswith(".") for name in folders):
            continue  # Caches hold the READMEs of other projects.
        for target in links.links_of(path.read_text("utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path}: {target}"


def test_pages_name_no_path_that_exists_only_on_one_machine() -> None:
    for name, text in written().items():
        assert not re.search(r"/home/\w+/|/Users/\w+/", text), name


def test_sitegen_modules_have_fewer_than_800_lines() -> None:
    for path in Path(site.__file__).parent.glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) < 800

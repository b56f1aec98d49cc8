"""Tests of a list in the console: its search, its order and its pages of rows."""

from __future__ import annotations

from broker_lite.console.lists import ROWS, Column, listing

COLUMNS = (Column("name", "Name"), Column("lag", "Lag", "number"), Column("id", "Id", "id"))
ROW_COUNT = 2 * ROWS + 1


def rows(*pairs: tuple[str, int | None]) -> list[dict[str, object]]:
    return [{"name": name, "lag": lag, "id": number} for number, (name, lag) in enumerate(pairs)]


def names(found: object) -> list[str]:
    return [row["name"] for row in found.rows]  # type: ignore[attr-defined]


def test_console_list_sorts_numbers_descending_and_unknown_ones_last() -> None:
    given = rows(("a", 1), ("b", None), ("c", 3), ("d", 3))
    assert names(listing(given, COLUMNS, {}, sort="lag")) == ["c", "d", "a", "b"]
    assert names(listing(given, COLUMNS, {"sort": "lag", "order": "asc"}, sort="name")) == [
        "a",
        "c",
        "d",
        "b",
    ]
    assert names(listing(given, COLUMNS, {"sort": "id"}, sort="name")) == ["a", "b", "c", "d"]


def test_console_list_sorts_the_name_orders_2_before_orders_10() -> None:
    given = rows(("orders-10", 1), ("orders-2", 2), ("a", 3), ("orders", 4), ("orders-x", 5))
    assert names(listing(given, COLUMNS, {}, sort="name")) == [
        *("a", "orders", "orders-2", "orders-10", "orders-x")
    ]


def test_console_list_with_an_unknown_column_or_page_uses_the_default() -> None:
    given = rows(("b", 1), ("a", 2))
    for query in ({"sort": "__class__"}, {"order": "x"}, {"page": "-1"}, {"page": "٣"}):
        found = listing(given, COLUMNS, query, sort="name")
        assert (names(found), found.page) == (["a", "b"], 1)


def test_search_in_a_console_list_ignores_case_and_is_kept_in_links() -> None:
    found = listing(rows(("Orders", 1), ("audit", 2)), COLUMNS, {"q": "ORD"}, sort="name")
    assert (names(found), found.total, found.known) == (["Orders"], 1, 2)
    assert found.order(COLUMNS[1]) == "?q=ORD&sort=lag&order=desc"
    assert found.order(COLUMNS[0]) == "?q=ORD&sort=name&order=desc"
    assert found.link(page="2") == "?q=ORD&page=2"


def test_page_of_a_console_list_has_at_most_100_rows() -> None:
    given = rows(*((f"{number:04}", number) for number in range(ROW_COUNT)))
    first = listing(given, COLUMNS, {}, sort="name")
    last = listing(given, COLUMNS, {"page": "99"}, sort="name")
    assert (len(first.rows), first.pages) == (ROWS, 3)
    assert (names(last), last.page) == ([f"{ROW_COUNT - 1:04}"], 3)

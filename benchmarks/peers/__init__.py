"""Compare logbus with other systems. Each benchmark is a *row* of the table of results. Its
*sides* (the compared systems) run alternately, once for each *variant* (a set of settings).

    PYTHONPATH=benchmarks python -P -m peers [ROW …] [--quick] [--input FILE]

``fetch`` downloads the other systems (the *peers*), and ``servers`` runs them. ``row`` defines a
row of the table, ``rows`` has all rows, and ``alternate`` runs a row. ``meter`` measures the cost
of every process, and ``report`` writes ``RESULTS.md`` from the stored results. See ../README.md.
"""

"""Compare logbus with other systems: the sides of a row run alternately in one session. See
../README.md.

    PYTHONPATH=benchmarks python -P -m peers [ROW …] [--quick] [--input FILE]

``fetch`` downloads the peers and ``servers`` runs them. ``row`` defines a row of the table,
``rows`` has all of them, and ``alternate`` runs one. ``meter`` measures the cost of every process,
and ``report`` writes ``RESULTS.md`` from the stored results.
"""

"""logbus side by side with its peers: both in one run, alternately (../README.md).

    PYTHONPATH=benchmarks python -P -m peers [ROW …] [--quick] [--input FILE]

``fetch`` brings the peers, ``servers`` runs them, ``row`` says what a row of the table is, ``rows``
holds them, ``alternate`` runs one, ``meter`` counts what every process spent, ``report`` writes
``RESULTS.md`` from the results that are kept.
"""

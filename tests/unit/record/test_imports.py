"""Tests that records are encoded, read and written without pandas, which some functions of pyarrow
import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PATHS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import pyarrow as pa
from broker_lite.record import arrow, batch, transcode
from support.row_codec import Row, encode_rows

rows = [Row(i * 2, i, b"k", b"v" * i, (("h", b"x"),) if i else ()) for i in range(9)]
data = encode_rows(rows, codec=4)
columns = transcode.rows_to_columns(data, batch.read_header(data))
columns = columns._replace(value=columns.value.cast(pa.string()), key=pa.nulls(9, pa.binary()))
late = columns._replace(timestamp=columns.timestamp.cast(pa.timestamp("us")), headers=None)
chunks = columns._replace(value=pa.chunked_array([columns.value[:3], columns.value[3:]]))
unknown = columns._replace(timestamp=pa.nulls(9, pa.int64()))
parts = [late, chunks, unknown, *arrow.split(columns, 1500)]
for compression in ("none", "lz4"):
    for part in parts:
        stored = arrow.encode(part, timestamp_ms=7, compression=compression)
        arrow.decode(stored, batch.read_header(stored))
        transcode.columns_to_rows(stored, batch.read_header(stored))
assert "asyncio" not in sys.modules
assert "pandas" not in sys.modules
"""


COMMANDS = """
import io
import sys
from pathlib import Path
from broker_lite.cli.consume import RecordChooser
from broker_lite.cli.lines import LineRule, tables
from broker_lite.client.record_files import WRITERS
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.ranges_reader import _before
from broker_lite.model import TopicPartition

folder = Path(sys.argv[1])
texts = {
    "lines": "k:v\\nw\\n",
    "jsonl": '{"value": 1, "timestamp_ms": 5, "headers": [["h", "x"]]}\\n',
    "csv": 'key,value,headers\\n,v,"[[""h"", ""x""]]"\\nk,w,\\n',
}
rule = LineRule(key_delimiter=b":", headers=(("h", b"x"),))
read = {}
for form, text in texts.items():
    (folder / form).write_text(text)
    [read[form]] = tables(folder / form, form, rule)
[batch] = read["lines"].to_batches()
assert RecordChooser("v", "k", "h=x").choose(batch).num_rows == 1
assert RecordFilters("k", "V", "h").select(batch).num_rows == 1
number = batch["key"].is_null().cast("int32")
columns = {"partition": number, "offset": number.cast("int64")}
assert _before(batch.from_pydict(columns), {TopicPartition("t", 0): 1}).num_rows == 1
for begin in WRITERS.values():
    begin(io.BytesIO())[1]()
assert "pandas" not in sys.modules
"""


def run(code: str, *words: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr


def test_encoding_and_decoding_of_batches_do_not_import_pandas() -> None:
    run(PATHS, str(Path(__file__).parents[2]))


def test_commands_and_the_console_read_and_write_records_without_pandas(tmp_path: Path) -> None:
    """Regression: pandas took 40 MB of a console, and half a second of each command."""
    run(COMMANDS, str(tmp_path))


def test_broker_module_imports_neither_numpy_nor_pyarrow() -> None:
    run(
        "import sys, broker_lite.server.process;"
        "assert not {'numpy', 'pandas', 'pyarrow'} & sys.modules.keys()"
    )

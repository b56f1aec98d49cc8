"""The command ``logbus checkpoint``: its options, and how it converts the offsets of a Kafka
query. ``python -m pyspark_logbus.checkpoint`` runs it too."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from broker_lite.cli import main as command_line
from broker_lite.cli import output
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.client.administration.admin import Admin
from broker_lite.client.client_config import security_of_file
from broker_lite.client.discovery import recorded_security
from broker_lite.errors import InvalidConfigError, UnknownTopicOrPartitionError
from broker_lite.mirror.mirror import Mirror
from broker_lite.model import LATEST_TIMESTAMP, OffsetAndEpoch, TopicPartition
from pyspark_logbus.checkpoint.conversion import Conversion, convert
from pyspark_logbus.checkpoint.offset_log import KafkaOffsets
from pyspark_logbus.offsets import SourceOffset, TopicOffsets


class OffsetConverter:
    """Converts offsets of a Kafka query to offsets of a logbus cluster.

    If ``mirror`` (``logbus mirror``) copied the topics, its offset map translates the offsets. With
    ``mirror`` None, the offsets stay unchanged.
    """

    def __init__(self, admin: Admin, mirror: Mirror | None) -> None:
        self._admin = admin
        self._mirror = mirror

    def __call__(self, offsets: KafkaOffsets) -> SourceOffset:
        """Return the offsets as a source offset of the logbus cluster.

        Raises UnknownTopicOrPartitionError for a partition that the cluster lacks, and
        InvalidConfigError for an offset past the log end offset.
        """
        translated = offsets if self._mirror is None else self._mirror.translated(offsets)
        tps = {
            TopicPartition(topic, int(number)): offset
            for topic, row in translated.items()
            for number, offset in row.items()
        }
        view = self._admin.cluster(sorted(translated))
        there = {tp for topic in translated for tp in view.partitions_of(topic)}
        for tp in sorted(tps.keys() - there):
            raise UnknownTopicOrPartitionError(
                f"{tp} is not on this cluster; copy the topic first: logbus mirror --from …"
            )
        ends = self._admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
        for tp, offset in sorted(tps.items()):
            if offset > ends[tp].offset:
                raise InvalidConfigError(
                    f"{tp} ends at offset {ends[tp].offset} on this cluster, but the checkpoint "
                    f"has offset {offset}. If logbus mirror copied the topic, name its source "
                    "with --from"
                )
        topics = {
            topic: TopicOffsets(
                view.topic_id(topic),
                {int(number): OffsetAndEpoch(offset) for number, offset in row.items()},
            )
            for topic, row in translated.items()
        }
        return SourceOffset(view.cluster_id, topics)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--from", "source", metavar="HOST:PORT", help="The cluster that logbus mirror copied from."
)
@click.option(
    "--from-config",
    "source_config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the security.protocol, sasl.username, … of --from (-F is this cluster's).",
)
@cluster_options
@output.output_option
def main(
    *,
    old: Path,
    new: Path,
    source: str | None,
    source_config: Path | None,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Copy OLD, the checkpoint of a stopped format("kafka") query, to NEW for format("logbus").

    The query keeps its state, its batch numbers and its position. OLD is only read.

    With --from, the mirror's offset map translates the offsets. Without --from the offsets stay as
    they are: right for a query that read this cluster through Kafka's connector.

    \b
    Examples:
      logbus checkpoint /chk/kafka /chk/logbus
      logbus checkpoint /chk/kafka /chk/logbus --from kafka1:9092
    """
    with ExitStack() as open_:
        servers = bootstrap(cluster)
        admin = open_.enter_context(Admin(servers, client_id="logbus-cli"))
        mirror = None
        if source is not None:
            # Use the source cluster's own settings: it must not receive this cluster's credentials.
            security = (
                security_of_file(source_config) if source_config else recorded_security(source)
            )
            mirror = Mirror(source, servers, source_security=security, tell=output.say)
            open_.callback(mirror.close)
        conversion = convert(old, new, OffsetConverter(admin, mirror))
    print_result(conversion, new, form)


def print_result(conversion: Conversion, new: Path, form: str | None) -> None:
    """Print each partition's offset in Kafka and in logbus, and the user's next step."""
    rows = [row._asdict() for row in conversion.offsets]
    if form == "csv" or output.is_table(form):
        output.show(rows, form)
    else:
        report = {
            "batch": conversion.batch,
            "is_completed": conversion.is_completed,
            "offsets": rows,
        }
        output.show_one(report, form)
    next_step = "resumes after" if conversion.is_completed else "repeats"
    output.say(
        f'Now start the query as format("logbus") with checkpointLocation {new}: it {next_step} '
        f"batch {conversion.batch}. The old checkpoint is unchanged. Never run both queries."
    )


if __name__ == "__main__":
    sys.exit(command_line.run(sys.argv[1:], main, "logbus checkpoint"))

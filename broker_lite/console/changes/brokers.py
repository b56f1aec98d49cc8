"""Changes of brokers: elect all preferred leaders, and retire a broker that will not return."""

from __future__ import annotations

from broker_lite.console.changes.change import ChangePlan, Form
from broker_lite.console.page_request import PageRequest
from broker_lite.errors import BrokerIdNotRegisteredError, ElectionNotNeededError


def elect(request: PageRequest, _: Form) -> ChangePlan:
    def apply() -> str:
        outcomes = request.bus.admin.elect_leaders(None)
        for error in outcomes.values():
            if error is not None and not isinstance(error, ElectionNotNeededError):
                raise error
        return "/brokers"

    steps = ("Elects the preferred leader of every partition where it is in sync.",)
    return ChangePlan(steps, apply, command=("topic", "elect"))


def retire(request: PageRequest, _: Form) -> ChangePlan:
    broker = request.path["broker"]
    if not broker.isascii() or not broker.isdigit() or len(broker) > 9:
        raise BrokerIdNotRegisteredError(f"no broker has id {broker[:20]}; see the page Brokers")

    def apply() -> str:
        request.bus.admin.retire_broker(int(broker))
        return "/brokers"

    steps = (
        f"Unregisters broker {broker}, which must be stopped and hold no replica.",
        "A later start with its data directory is refused.",
    )
    command = ("broker", "retire", broker, "--yes")
    return ChangePlan(steps, apply, f"broker {broker}", command)

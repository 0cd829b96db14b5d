"""What an app declares of a queue or a schedule, checked where it is written."""

from collections.abc import Mapping
from typing import Any, get_args

from holdfast import synonyms
from holdfast.callsite import caller
from holdfast.errors import InvalidSchedule, InvalidSetting, Misuse
from holdfast.records import Missed, NewJob, Overlap, QueueOptions, QueueSettings
from holdfast.records.limits import refusals


def check_queue(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse a name or settings that the database would not take when a worker starts."""
    for setting in settings:
        if setting == "fanout" or setting not in QueueOptions.__annotations__:
            near = synonyms.meant(setting, QueueOptions.__annotations__)
            known = [one for one in QueueOptions.__annotations__ if one != "fanout"]
            raise Misuse(
                f"app.queue({name!r}): {setting!r} cannot be declared"
                + (f" (did you mean {near!r}?)" if near and near != setting else ""),
                why=caller(),
                fix="To change it while the queue is empty:  holdfast queue set"
                if setting == "fanout"
                else f"Settings are: {', '.join(known)}.",
            )
    rate, period = settings.get("rate_limit"), settings.get("rate_period")
    if (rate is None) != (period is None) or not isinstance(rate, int | None):
        raise Misuse(
            f"app.queue({name!r}): rate_limit is {rate!r}, and rate_period {period!r}",
            why=caller(),
            fix="Ten a minute:  rate_limit=10, rate_period=60",
        )
    for no in (*refusals(NewJob, {"queue": name}), *refusals(QueueSettings, settings)):
        raise InvalidSetting(f"app.queue({name!r}): {no.what}", why=caller(), fix=no.fix)


def check_schedule(kind: str, *, name: Any, payload: Any, **rule: Any) -> None:
    """Refuse what no worker could store as a schedule; its times are checked elsewhere."""
    for option, value, type_ in (("payload", payload, Mapping), ("name", name, str)):
        if not isinstance(value, type_):
            raise InvalidSchedule(
                f"{option} {value!r} of the schedule of {kind!r} is not valid",
                why=caller(),
                fix='The arguments by name:  payload={"days": 1}' * (option == "payload"),
            )
    for option, values in (("missed", get_args(Missed)), ("overlap", get_args(Overlap))):
        if rule[option] not in values:
            raise InvalidSchedule(
                f"{option} {rule[option]!r} is not {', '.join(values[:-1])} or {values[-1]}",
                why=caller(),
            )

"""Jobs in steps, whose workers are killed between and within them."""

from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage

STEPS = 5


def test_each_step_has_its_effect_once_whoever_is_killed(stage: Stage, scale: Scale) -> None:
    jobs, kills = scale(60, 10_000), scale(2, 40)
    stage.enqueue("in_steps", jobs, lease=3.0, seconds=0.02)

    for nth in range(1, kills + 1):
        victim = stage.start(16)
        enough = jobs * STEPS * nth // (kills + 2)
        stage.until(
            lambda: stage.value("select count(*) from chaos.effect") >= enough,  # noqa: B023
            patience=120,
            why="no steps are done",
        )
        victim.kill()
    stage.start(16)
    took = stage.drained(scale(120, 1200))

    wanted = [(n * 10 + nth, 1) for n in range(jobs) for nth in range(STEPS)]
    assert stage.effects() == sorted(wanted)
    assert stage.value("select count(*) from holdfast.step") == 0
    stage.facts |= {"jobs": jobs, "kills": kills, "drained s": round(took, 1)}

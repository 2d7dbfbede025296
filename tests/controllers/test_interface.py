"""Names, signatures, protocol, and what an import costs."""

import inspect
import subprocess
import sys
import threading

import pytest

import kl_proteus
from kl_proteus import (
    AdaptiveKLController,
    FixedKLController,
    KLCoefficientController,
    PIDKLController,
    PPOPenaltyController,
    ScheduledKLController,
    ThresholdKLController,
)

BOUNDS = {"min_value": 1e-8, "max_value": 1e4, "unit": "nats/token"}
SIGNATURES = {
    FixedKLController: (["kl_coef"], BOUNDS),
    AdaptiveKLController: (["init_kl_coef", "target", "horizon"], {"clip": 0.2} | BOUNDS),
    PPOPenaltyController: (
        ["init_kl_coef", "target"],
        {"high": 1.5, "low": 1 / 1.5, "increase_factor": 2.0, "decrease_factor": 0.5} | BOUNDS,
    ),
    ThresholdKLController: (
        ["init_kl_coef", "target"],
        {
            "window": 10,
            "high": 1.5,
            "low": 0.5,
            "increase_factor": 1.5,
            "decrease_factor": 0.8,
            "min_value": 0.01,
            "max_value": 1.0,
            "unit": "nats/token",
            "keep_outside": False,
        },
    ),
    PIDKLController: (
        ["init_kl_coef", "target", "horizon"],
        {"kp": 1.0, "ki": 0.2, "kd": 0.5, "clip": 0.2} | BOUNDS,
    ),
    ScheduledKLController: (
        ["controller", "warmup_steps"],
        {"start": None, "shape": "linear", "min_value": None, "max_value": None, "unit": None},
    ),
}
MADE = [
    FixedKLController(0.2),
    AdaptiveKLController(0.2, 6.0, 10000),
    PPOPenaltyController(0.2, 6.0),
    ThresholdKLController(0.2, 6.0),
    PIDKLController(0.2, 6.0, 10000),
    ScheduledKLController(0.2, 100),
]


@pytest.mark.parametrize("kind", SIGNATURES)
def test_arguments_and_defaults(kind):
    positional, keywords = SIGNATURES[kind]
    parameters = inspect.signature(kind).parameters.values()
    empty = inspect.Parameter.empty
    assert [p.name for p in parameters if p.default is empty] == positional
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert {p.name: p.default for p in keyword_only} == keywords
    assert len(positional) + len(keywords) == len(parameters)


@pytest.mark.parametrize("controller", MADE, ids=lambda c: type(c).__name__)
def test_what_the_signature_says_is_what_is_used(controller):
    _, keywords = SIGNATURES[type(controller)]
    parameters = controller.state_dict()["parameters"]
    for name, value in keywords.items():
        if value is not None:
            assert parameters[name] == value


@pytest.mark.parametrize("controller", MADE, ids=lambda c: type(c).__name__)
def test_the_protocol(controller):
    assert isinstance(controller, KLCoefficientController)
    assert repr(controller).startswith(f"{type(controller).__name__}(value=")
    assert inspect.signature(controller.update).parameters["n_steps"].default == 1
    assert type(controller).__doc__.count("Args:") == 1
    for name in ("value", "unit", "last_change", "target"):
        with pytest.raises(AttributeError):
            setattr(controller, name, 1)


def test_a_users_own_controller_fits_the_protocol():
    class Mine:
        value, unit = 0.1, "nats/token"

        def update(self, current, n_steps=1):
            return self.value

    assert isinstance(Mine(), KLCoefficientController)
    assert not isinstance(object(), KLCoefficientController)


def test_shaping_takes_a_controller_of_its_unit():
    from kl_proteus.controllers import KLCoefficientController
    from kl_proteus.llm.shaping import RewardShaping

    controller = AdaptiveKLController(0.2, 6.0, 10000, unit="nats/step")
    assert isinstance(controller, KLCoefficientController)
    assert RewardShaping(penalty_weight=controller).current_penalty_weight == 0.2
    with pytest.raises(ValueError, match="nats/step"):
        RewardShaping(penalty_weight=AdaptiveKLController(0.2, 6.0, 10000))


def run(code):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_no_controller():
    loaded = run("import sys, kl_proteus; print(*sorted(sys.modules))").split()
    assert not {"kl_proteus.controllers", "kl_proteus.kl_controller", "gymnasium", "numpy"} & {
        *loaded
    }


def test_the_drop_in_controller_needs_neither_torch_nor_gymnasium():
    loaded = run(
        "import sys\nfrom kl_proteus import *\nfrom kl_proteus import KLConfig, KLControllerBase\n"
        "KLControllerBase(KLConfig('m')).get_penalty_from_logprobs([-1.0], [-2.0])\n"
        "print(*sorted(sys.modules))"
    )
    assert "torch" not in loaded.split()
    alone = run(
        "import sys\nfrom kl_proteus import KLConfig, KLControllerBase\n"
        "KLControllerBase(KLConfig('m'))\nprint(*sorted(sys.modules))"
    )
    assert not {"torch", "gymnasium"} & {*alone.split()}


def test_every_public_name_is_there():
    for name in kl_proteus.__all__:
        assert getattr(kl_proteus, name) is not None


def test_threads_may_share_a_controller():
    controller = ScheduledKLController(0.5, 80_000, start=0.1)

    def work():
        for _ in range(10_000):
            controller.update(1.0, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert controller.steps == 40_000

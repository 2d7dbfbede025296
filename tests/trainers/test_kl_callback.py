"""`KLControlCallback` in real trainers: what it drives, saves, restores and refuses."""

import copy
import gc
import json
import math
import weakref
from typing import ClassVar

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from kl_proteus import (
    AdaptiveKLController,
    FixedKLController,
    PIDKLController,
    PPOPenaltyController,
    ScheduledKLController,
    ThresholdKLController,
)
from kl_proteus.torch.trl import KLControlCallback
from trainers import tiny

CONTROLLERS = {
    "fixed": FixedKLController(0.07),
    "adaptive": AdaptiveKLController(0.05, 0.004, 64),
    "band": PPOPenaltyController(0.05, 0.004),
    "threshold": ThresholdKLController(0.05, 0.004, window=2),
    "pid": PIDKLController(0.05, 0.004, 64),
    "scheduled": ScheduledKLController(AdaptiveKLController(0.05, 0.004, 64), 24, start=1e-3),
}
LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def rows(trainer, *keys):
    """The logged rows of training steps."""
    return [tuple(row[key] for key in keys) for row in trainer.state.log_history if "kl" in row]


class Own:
    """A controller of a user: halves the coefficient, whatever it is told."""

    unit = "nats/token"

    def __init__(self, value=0.5):
        self.value = value
        self.seen = []

    def update(self, current, n_steps=1):
        self.seen.append((current, n_steps))
        self.value /= 2
        return self.value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


# Driving beta ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_beta_is_what_the_controller_makes_of_the_logged_divergence(kind, name, model, tmp_path):
    controller = copy.deepcopy(CONTROLLERS[name])
    trainer = tiny.trainer(kind, model, tmp_path, max_steps=6)
    KLControlCallback(controller).attach(trainer)
    assert trainer.beta == controller.value
    trainer.train()
    alone = copy.deepcopy(CONTROLLERS[name])
    for kl, coefficient in rows(trainer, "kl", "kl_coef"):
        assert coefficient == alone.value
        alone.update(kl, 8)
    assert trainer.beta == controller.value == alone.value
    assert controller.state_dict() == alone.state_dict()
    assert rows(trainer, "kl")[0] == (0.0,)
    if name != "fixed":
        assert len(set(rows(trainer, "kl_coef"))) > 1


def test_the_coefficient_acts(model, tmp_path):
    """The loss feels it: the same run drifts less under a controller than under a constant."""
    last = {}
    for name, controller in (
        ("constant", FixedKLController(0.05)),
        ("controlled", PPOPenaltyController(0.05, 0.004)),
    ):
        trainer = tiny.trainer("grpo", model, tmp_path, max_steps=30, lr_scheduler_type="constant")
        KLControlCallback(controller).attach(trainer)
        trainer.train()
        last[name] = sum(kl for (kl,) in rows(trainer, "kl")[-5:]) / 5
    assert last["controlled"] < 0.5 * last["constant"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"logging_steps": 2}, [16, 16]),
        ({"logging_steps": 2, "logging_first_step": True}, [8, 8, 16]),
        ({"gradient_accumulation_steps": 2}, [16, 16, 16, 16]),
    ],
)
def test_an_update_stands_for_the_completions_since_the_last(options, expected, model, tmp_path):
    trainer = tiny.trainer("grpo", model, tmp_path, **options)
    controller = Own()
    KLControlCallback(controller).attach(trainer)
    trainer.train()
    assert [n for _, n in controller.seen] == expected
    assert [(kl,) for kl, _ in controller.seen] == rows(trainer, "kl")


def test_steps_of_ones_own_and_a_callback_that_was_passed_in(model, tmp_path):
    controller = Own()
    callback = KLControlCallback(controller, n_steps=3)
    trainer = tiny.trainer("grpo", model, tmp_path, callbacks=[callback])
    assert callback.attach(trainer) is callback.attach(trainer) is callback
    assert trainer.callback_handler.callbacks.count(callback) == 1
    trainer.train()
    assert [n for _, n in controller.seen] == [3] * 4
    assert trainer.beta == 0.5 / 2**4


def test_reporters_see_the_coefficient(model, tmp_path):
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        seen: ClassVar[list] = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen.append(logs.get("kl_coef"))

    trainer = tiny.trainer("grpo", model, tmp_path, callbacks=[Reporter()])
    KLControlCallback(Own()).attach(trainer)
    trainer.train()
    assert Reporter.seen == [0.5, 0.25, 0.125, 0.0625, None]  # the summary measures nothing


def test_an_evaluation_is_no_measurement(model, tmp_path):
    trainer = tiny.trainer("grpo", model, tmp_path, max_steps=2)
    controller = Own()
    KLControlCallback(controller).attach(trainer)
    trainer.train()
    metrics = trainer.evaluate(trainer.train_dataset)
    assert "eval_kl" in metrics
    assert len(controller.seen) == 2


@pytest.mark.parametrize("kl", [None, math.nan, math.inf])
def test_a_divergence_that_is_no_number_moves_nothing(kl, model, tmp_path, caplog):
    trainer = tiny.trainer("grpo", model, tmp_path)
    controller = AdaptiveKLController(0.05, 0.004, 64)
    callback = KLControlCallback(controller).attach(trainer)
    logs = {"kl": kl}
    callback.on_log(trainer.args, trainer.state, trainer.control, logs)
    assert (trainer.beta, controller.value, controller.last_change) == (0.05, 0.05, None)
    assert logs["kl_coef"] == 0.05
    assert "measures nothing" in caplog.text


# Checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [("grpo", "pid"), ("grpo", "scheduled"), ("grpo", "threshold"), ("rloo", "adaptive")],
)
def test_a_resumed_run_continues(kind, name, restore, model, tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    keys = ("step", "kl", "kl_coef", "reward")

    whole = tiny.trainer(kind, model, tmp_path, **options)
    expected = copy.deepcopy(CONTROLLERS[name])
    KLControlCallback(expected).attach(whole)
    whole.train()

    resumed = tiny.trainer(
        kind, model, tmp_path, restore_callback_states_from_checkpoint=restore, **options
    )
    controller = copy.deepcopy(CONTROLLERS[name])
    callback = KLControlCallback(controller).attach(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert rows(resumed, *keys) == rows(whole, *keys)
    assert len(rows(resumed, *keys)) == 6
    assert resumed.beta == controller.value == expected.value
    assert controller.state_dict() == expected.state_dict()
    # With the option the trainer puts another object in the place of the one that was attached.
    working = [c for c in resumed.callback_handler.callbacks if isinstance(c, KLControlCallback)]
    assert len(working) == 1
    assert (working[0] is callback) != restore
    assert working[0].controller is controller
    if restore:
        # and that one is as good: it is saved and restored like the first.
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        assert rows(resumed, *keys) == rows(whole, *keys)


def test_what_a_checkpoint_holds(model, tmp_path):
    trainer = tiny.trainer("grpo", model, tmp_path, save_strategy="steps", save_steps=3)
    controller = AdaptiveKLController(0.05, 0.004, 64)
    KLControlCallback(controller, n_steps=5).attach(trainer)
    trainer.train()
    saved = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    state = saved["stateful_callbacks"]["KLControlCallback"]
    assert state["args"] == {"n_steps": 5}
    assert state["attributes"]["saved"]["last_step"] == 3
    other = AdaptiveKLController(0.05, 0.004, 64)
    other.load_state_dict(state["attributes"]["saved"]["controller"])
    assert other.value == rows(trainer, "kl_coef")[3][0]


def test_logs_that_are_rarer_than_checkpoints(model, tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "logging_steps": 2}
    whole = tiny.trainer("grpo", model, tmp_path, **options)
    first = Own()
    KLControlCallback(first).attach(whole)
    whole.train()
    resumed = tiny.trainer("grpo", model, tmp_path, **options)
    second = Own()
    KLControlCallback(second).attach(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [n for _, n in first.seen] == [16, 16, 16]
    assert [n for _, n in second.seen] == [16, 16]
    assert second.value == first.value


def test_control_may_begin_at_a_checkpoint_of_a_run_without(model, tmp_path, caplog):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    tiny.trainer("grpo", model, tmp_path, **options).train()
    trainer = tiny.trainer("grpo", model, tmp_path, **options)
    controller = Own()
    KLControlCallback(controller).attach(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "holds no KLControlCallback" in caplog.text
    assert [n for _, n in controller.seen] == [8, 8]
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    state = saved["stateful_callbacks"]["KLControlCallback"]
    assert state["attributes"]["saved"]["controller"] == {"value": 0.125}


def test_a_checkpoint_of_another_controller_is_refused(model, tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = tiny.trainer("grpo", model, tmp_path, **options)
    KLControlCallback(PPOPenaltyController(0.05, 0.004)).attach(trainer)
    trainer.train()
    other = tiny.trainer("grpo", model, tmp_path, **(options | {"max_steps": 4}))
    controller = AdaptiveKLController(0.05, 0.004, 64)
    before = controller.state_dict()
    KLControlCallback(controller).attach(other)
    with pytest.raises(ValueError, match="the checkpoint does not fit the controller"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert controller.state_dict() == before


def test_a_trainer_is_not_kept_alive(model, tmp_path):
    trainer = tiny.trainer("grpo", model, tmp_path)
    callback = KLControlCallback(Own()).attach(trainer)
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None
    assert callback.controller.value == 0.5


# PEFT ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_a_new_adapter_needs_no_reference_model(beta, model, tmp_path, caplog):
    trainer = tiny.trainer("grpo", model, tmp_path, beta=beta, peft_config=LORA, learning_rate=0.1)
    assert trainer.ref_model is None
    controller = Own()
    KLControlCallback(controller).attach(trainer)
    trainer.train()
    kls = [kl for kl, _ in controller.seen]
    assert len(kls) == 4
    assert kls[0] == pytest.approx(0.0, abs=1e-7)
    assert all(kl > 1e-6 for kl in kls[1:])
    assert trainer.beta == 0.5 / 2**4
    assert "adapter" not in caplog.text


def trained_adapter(model):
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LORA)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return policy


def test_a_trained_adapter_with_a_beta_is_its_own_reference(model, tmp_path, caplog):
    trainer = tiny.trainer("grpo", trained_adapter(model), tmp_path, max_steps=1)
    controller = Own()
    KLControlCallback(controller).attach(trainer)
    trainer.train()
    assert controller.seen[0][0] == pytest.approx(0.0, abs=1e-7)
    assert "reference is the base model" not in caplog.text


def test_a_trained_adapter_without_a_beta_has_the_base_as_reference(model, tmp_path, caplog):
    trainer = tiny.trainer("grpo", trained_adapter(model), tmp_path, beta=0.0, max_steps=1)
    controller = Own()
    KLControlCallback(controller).attach(trainer)
    assert "reference is the base model" in caplog.text
    trainer.train()
    assert controller.seen[0][0] > 1e-3


# Refusals --------------------------------------------------------------------------------------


def refused(trainer, match, error=ValueError, controller=None):
    beta = getattr(trainer, "beta", None)
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises(error, match=match):
        KLControlCallback(controller or FixedKLController(0.1)).attach(trainer)
    assert getattr(trainer, "beta", None) == beta
    assert trainer.callback_handler.callbacks == callbacks


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_without_a_reference_there_is_nothing_to_measure(kind, model, tmp_path):
    refused(tiny.trainer(kind, model, tmp_path, beta=0.0), "beta = 0, for which TRL loads none")


QUIET = {
    "per_device_train_batch_size": 2,
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "report_to": "none",
}


def test_dpo_is_refused_with_the_reason(model, tmp_path):
    trainer = DPOTrainer(
        model,
        args=DPOConfig(str(tmp_path), **QUIET),
        train_dataset=Dataset.from_dict(
            {"prompt": ["abc"] * 2, "chosen": ["de"] * 2, "rejected": ["fg"] * 2}
        ),
        processing_class=tiny.tokenizer(),
    )
    refused(trainer, "inverse temperature of the implicit reward", TypeError)


def test_other_trainers_are_refused(model, tmp_path):
    trainer = SFTTrainer(
        model,
        args=SFTConfig(str(tmp_path), **QUIET),
        train_dataset=Dataset.from_dict({"text": ["abc", "de"]}),
        processing_class=tiny.tokenizer(),
    )
    refused(trainer, "GRPOTrainer or RLOOTrainer, got SFTTrainer", TypeError)
    with pytest.raises(TypeError, match="got str"):
        KLControlCallback(FixedKLController(0.1)).attach("trainer")


def test_a_trainer_that_logs_nothing_is_refused(model, tmp_path):
    refused(tiny.trainer("grpo", model, tmp_path, logging_strategy="no"), "logging_strategy")


def test_a_second_controller_is_refused(model, tmp_path):
    trainer = tiny.trainer("grpo", model, tmp_path)
    callback = KLControlCallback(FixedKLController(0.2)).attach(trainer)
    refused(trainer, "no other KLControlCallback")
    with pytest.raises(RuntimeError, match="another trainer"):
        callback.attach(tiny.trainer("grpo", model, tmp_path))


def test_a_callback_that_was_not_attached_says_so(model, tmp_path):
    trainer = tiny.trainer(
        "grpo", model, tmp_path, callbacks=[KLControlCallback(FixedKLController(0.1))]
    )
    with pytest.raises(RuntimeError, match=r"attach\(trainer\)"):
        trainer.train()


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_updates_that_the_rule_will_refuse_fail_before_the_first_step(kind, model, tmp_path):
    trainer = tiny.trainer(kind, model, tmp_path, logging_steps=4)
    KLControlCallback(AdaptiveKLController(0.05, 0.004, 6)).attach(trainer)  # 0.2 * 32 >= 6
    with pytest.raises(ValueError, match=r"n_steps = 32.*horizon"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_ramp_does_not_hide_what_the_rule_will_refuse(model, tmp_path):
    trainer = tiny.trainer("grpo", model, tmp_path)
    rule = AdaptiveKLController(0.05, 0.004, 1.5)
    KLControlCallback(ScheduledKLController(rule, 1000)).attach(trainer)
    with pytest.raises(ValueError, match="n_steps = 8"):
        trainer.train()


@pytest.mark.parametrize(
    ("controller", "error", "match"),
    [
        (FixedKLController(0.1, unit="nats/sequence"), ValueError, "'nats/sequence'"),
        (FixedKLController(0.1, unit="nats/step"), ValueError, "'nats/token', which is what TRL"),
        (FixedKLController(0.0), ValueError, r"controller\.value must be > 0"),
        (Own(math.nan), ValueError, "finite"),
        (Own("0.1"), TypeError, "real number"),
        (0.1, TypeError, "got 0.1"),
        ("fixed", TypeError, "got 'fixed'"),
    ],
)
def test_controllers_that_do_not_fit(controller, error, match):
    with pytest.raises(error, match=match):
        KLControlCallback(controller)


def test_a_lower_bound_of_zero_is_refused():
    own = Own()
    own.min_value = 0.0
    with pytest.raises(ValueError, match="min_value above 0"):
        KLControlCallback(own)


def test_a_coefficient_that_falls_to_zero_stops_the_run(model, tmp_path):
    class Falling(Own):
        def update(self, current, n_steps=1):
            self.value = 0.0

    trainer = tiny.trainer("grpo", model, tmp_path)
    KLControlCallback(Falling()).attach(trainer)
    with pytest.raises(ValueError, match=r"controller\.value must be > 0"):
        trainer.train()
    assert trainer.beta == 0.5


@pytest.mark.parametrize(("n_steps", "error"), [(0, ValueError), (1.5, TypeError)])
def test_bad_numbers_of_steps(n_steps, error):
    with pytest.raises(error, match="n_steps"):
        KLControlCallback(FixedKLController(0.1), n_steps=n_steps)


def test_a_callback_without_a_controller_attaches_to_nothing(model, tmp_path):
    with pytest.raises(RuntimeError, match="no controller"):
        KLControlCallback().attach(tiny.trainer("grpo", model, tmp_path))

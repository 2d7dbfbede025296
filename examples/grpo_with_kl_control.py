"""Hold the KL divergence of a GRPO run at a target, next to a run with a constant coefficient.

A language model of 5000 parameters learns to write vowels. The reward keeps pulling it away from
where it began; how far it gets is up to `beta`. With `KLControlCallback` it settles at a target, in
nats per token. Two runs of 200 steps take some 20 seconds on a CPU; they print a table and, where
matplotlib is installed, draw kl_control.png.

Needs the extra `trl`:  python examples/grpo_with_kl_control.py [--steps 200] [--target 0.1]
"""

import argparse
import string
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    logging,
)
from trl import GRPOConfig, GRPOTrainer

from kl_proteus import FixedKLController, PIDKLController, ScheduledKLController
from kl_proteus.torch import KLControlCallback

START = 0.3
ROWS = 16
TOKENS = ["<pad>", "<bos>", "<eos>", *string.ascii_lowercase, " "]


def make_model(folder):
    """A random model and a tokenizer of single letters, on disk: TRL reads its reference there."""
    torch.manual_seed(0)
    sizes = {"vocab_size": len(TOKENS), "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ids)).save_pretrained(folder)
    vocabulary = {token: place for place, token in enumerate(TOKENS)}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    named = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=letters, **named).save_pretrained(folder)


def share_of_vowels(completions, **_):
    return [sum(letter in "aeiou" for letter in text) / 12 for text in completions]


def train(folder, controller, steps):
    """Trains under a controller; returns the logged divergences, coefficients and rewards."""
    settings = GRPOConfig(
        str(folder / "run"),
        beta=controller.value,
        max_steps=steps,
        logging_steps=1,  # one update of the controller a step
        per_device_train_batch_size=ROWS,
        num_generations=8,
        max_completion_length=12,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        seed=0,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        str(folder / "model"),
        reward_funcs=share_of_vowels,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["abc", "hello", "the cat", "x"] * 4}),
    )
    trainer.remove_callback(PrinterCallback)
    KLControlCallback(controller).attach(trainer)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "kl" in row]
    return {name: [row[name] for row in rows] for name in ("kl", "kl_coef", "reward")}


def print_table(runs, steps):
    """Means over a tenth of the run each."""
    names = list(runs)
    print(f"{'':6}" + "".join(f"  {name:^28}" for name in names))
    print(f"{'step':>6}" + f"  {'KL':>8}  {'coef':>8}  {'reward':>8}" * len(names))
    size = max(1, steps // 10)
    for start in range(0, steps, size):
        stop = min(start + size, steps)
        line = f"{stop:6}"
        for name in names:
            for values in runs[name].values():
                line += f"  {sum(values[start:stop]) / (stop - start):8.4f}"
        print(line)


def draw(runs, target, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    for name, run in runs.items():
        above.plot(run["kl"], label=name)
        below.plot(run["kl_coef"], label=name)
    above.axhline(target, color="black", linestyle=":", label="target")
    above.set_ylabel("KL (nats per token)")
    above.legend()
    below.set_ylabel("coefficient (beta)")
    below.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--target", type=float, default=0.1)
    options = parser.parse_args()
    logging.disable_progress_bar()
    # Time, for the controller, counts completions: it reacts within ten batches, and leaves the
    # first thirty alone, in which the policy has not moved yet.
    pid = PIDKLController(START, options.target, horizon=10 * ROWS)
    controllers = {
        "constant": FixedKLController(START),
        "controlled": ScheduledKLController(pid, warmup_steps=30 * ROWS, start=START),
    }
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model")
        runs = {
            name: train(Path(folder), controller, options.steps)
            for name, controller in controllers.items()
        }
    print_table(runs, options.steps)
    last = runs["controlled"]["kl"][-options.steps // 4 :]
    print(f"target {options.target:g}, last quarter {sum(last) / len(last):.4f} nats per token")
    try:
        draw(runs, options.target, "kl_control.png")
    except ImportError:
        print("matplotlib is not installed: no picture")
    else:
        print("kl_control.png shows both runs")


if __name__ == "__main__":
    main()

"""The drop-in controller that fits the installation."""

import logging
from importlib import import_module
from importlib.util import find_spec

from kl_proteus.kl_controller.base import KLControllerBase
from kl_proteus.kl_controller.config import KLConfig

logger = logging.getLogger("kl_proteus.kl_controller")


def create_kl_controller(
    reference_model_name: str,
    kl_coeff: float = 0.1,
    kl_target: float = 3.0,
    adaptive: bool = True,
    load_model: bool = True,
) -> KLControllerBase:
    """Makes a controller with a reference model where torch is installed, else one without.

    Args:
        reference_model_name: Name or path of the reference model.
        kl_coeff: Coefficient to begin with.
        kl_target: Divergence aimed at, in nats per token.
        adaptive: Whether the coefficient adapts.
        load_model: False for a controller that takes reference log-probabilities.

    Returns:
        A `KLController` with the model loaded; without torch, after a warning in the log, or with
        `load_model=False` a `KLControllerBase`.

    Raises:
        OSError: There is no such model.
        TypeError: An argument is of another type.
        ValueError: An argument is out of its range, or the model wants to run code of its own.
    """
    config = KLConfig(reference_model_name, kl_coeff, kl_target, adaptive)
    if not load_model:
        return KLControllerBase(config)
    try:
        with_model = import_module("kl_proteus.torch").KLController
        if find_spec("transformers") is None:
            raise ImportError("No module named 'transformers'")
    except ImportError as error:
        logger.warning(
            "No reference model is loaded (%s); the controller takes reference log-probabilities "
            "that you computed. pip install 'kl-proteus[torch]' brings the models.",
            error,
        )
        return KLControllerBase(config)
    return with_model(config)

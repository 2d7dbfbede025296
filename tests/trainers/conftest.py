"""What every test with a trainer of TRL needs."""

import pytest

from trainers import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of the tiny model."""
    return tiny.saved_model(tmp_path_factory.mktemp("tiny-model"))

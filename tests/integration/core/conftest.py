from tests.unit.core.conftest import (
    clean_environment,
    farm,
    farm_process,
    project,
    root,
    script,
    stand_ins,
)  # noqa: F401

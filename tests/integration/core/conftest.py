from tests.unit.core.conftest import (  # noqa: F401
    clean_environment,
    farm,
    farm_process,
    project,
    root,
    script,
    stand_ins,
)

"""NeMo Gym's protocol, both ways.

`server` serves our environments to Gym; `client` runs Gym's servers and agents as our environments. `rows` and
`metrics` convert rows and compute Gym's own metrics, `config` writes Gym configurations, `process` starts a server as a
child, `harness` has NeMo Evaluator's interface.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.gym.config import generate_gym_config, write_deployment, write_gym_config
    from rollbook.gym.harness import EnvironmentHarness, Harness, HarnessEnvironment
    from rollbook.gym.process import ResourceServerProcess
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "EnvironmentHarness",
    "Harness",
    "HarnessEnvironment",
    "ResourceServerProcess",
    "generate_gym_config",
    "write_deployment",
    "write_gym_config",
]

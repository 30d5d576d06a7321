"""The built-in environments, one module each; the registry finds them by name."""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.environments.builtin.bbh import BBH
    from rollbook.environments.builtin.code import Code
    from rollbook.environments.builtin.gsm8k import GSM8K
    from rollbook.environments.builtin.humaneval import HumanEval
    from rollbook.environments.builtin.ifeval import IFEval
    from rollbook.environments.builtin.json_schema import JSONSchema
    from rollbook.environments.builtin.math import Math
    from rollbook.environments.builtin.math500 import Math500
    from rollbook.environments.builtin.mbpp import MBPP
    from rollbook.environments.builtin.mcqa import MCQA
    from rollbook.environments.builtin.python_tool import PythonTool
    from rollbook.environments.builtin.reasoning_gym import ReasoningGym
    from rollbook.environments.builtin.rubric import Rubric, RubricCalibration
    from rollbook.environments.builtin.string_match import StringMatch
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "BBH",
    "GSM8K",
    "MBPP",
    "MCQA",
    "Code",
    "HumanEval",
    "IFEval",
    "JSONSchema",
    "Math",
    "Math500",
    "PythonTool",
    "ReasoningGym",
    "Rubric",
    "RubricCalibration",
    "StringMatch",
]

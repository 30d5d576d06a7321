"""`rollbook gym-config`: the configuration, the rows and the folder with which NeMo Gym uses an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.serve import EvalType, HarnessArg, pairs

ModelUrl = Annotated[
    str, typer.Option("--model-url", metavar="URL", help="The endpoint that answers.", show_default=False)
]
ModelId = Annotated[
    str, typer.Option("--model-name", metavar="NAME", help="What the endpoint calls it.", show_default=False)
]
Config = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The YAML; the rest goes beside it.")]
Host = Annotated[str, typer.Option("--host", help="Where the environment's server is to be.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="Likewise. [default: one that goes with the environment's name]"),
]
Domain = Annotated[str, typer.Option("--domain", help="What Gym is to call its field: math, coding, agent, ...")]
Key = Annotated[str, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the model's key.")]
Judges = Annotated[list[str] | None, typer.Option("--judge", metavar="URL", help="The server asks this judge.")]


def command(
    env: o.Target,
    model_url: ModelUrl,
    model_name: ModelId,
    out: Config = Path("config.yaml"),
    host: Host = "127.0.0.1",
    port: Port = None,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    limit: o.Limit = None,
    domain: Domain = "other",
    api_key_env: Key = "OPENAI_API_KEY",
    judge: Judges = None,
    judge_name: o.JudgeName = "",
    eval_type: EvalType = "",
    harness_arg: HarnessArg = None,
) -> None:
    from rollbook.wire.gym.deployment import deploy
    from rollbook.wire.gym.serve import Serving

    asked = Serving(
        env=env,
        data=data,
        template=prompt_template,
        eval_type=eval_type,
        harness_args=pairs("--harness-arg", harness_arg),
        host=host,
        port=port or 0,
        judge_name=judge_name,
    )
    made = deploy(
        asked, out, model_url, model_name, judges=judge or [], limit=limit, domain=domain, api_key_env=api_key_env
    )
    print(f"{out}: {made.name}, {made.name}_agent and policy_model")
    print(f"{made.data}: {made.rows} rows")
    print(f"{made.shim}: how Gym starts the server at http://{host}:{made.port}")

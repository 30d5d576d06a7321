"""Models: an OpenAI-compatible endpoint (vLLM first of all), the embedded model, or a script.

`open_model(spec, settings)` returns one of them; all implement `Model`. The package does not use environments or
run directories. A model never invents data: what the server did not send is None or raises `RolloutFailed`.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.models.chat import RAW_LOGPROBS, ChatModel
    from rollbook.models.chat_protocol import read_models
    from rollbook.models.model import (
        EMBEDDED_SLOTS,
        ENDPOINT_KINDS,
        REMOTE_MODEL_SPEC,
        AbsentModel,
        AskModel,
        Completion,
        Model,
        ModelCall,
        is_provider_target,
        normalize_base_url,
        open_model,
        resolve_model,
    )
    from rollbook.models.probe import probe_endpoint
    from rollbook.models.providers import check_headers, list_secrets
    from rollbook.models.responses_api import (
        CREATE_PARAMS,
        FOREIGN_ITEM,
        INCOMPLETE_REASONS,
        CreateParams,
        get_foreign_item,
        make_create_params,
        make_response,
        make_sampling_params,
        make_usage,
        read_create_params,
        read_output,
        read_tokens,
        to_chat_tools,
    )
    from rollbook.models.router import describe_connection_error, open_http_session
    from rollbook.models.server_errors import check_finite_logprobs, read_context_limit
    from rollbook.models.token_continuation import AnsweredCall, TokenContinuingModel, require_continuing
    from rollbook.models.weights import has_weights, pull_weights, weights_path
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "CREATE_PARAMS",
    "EMBEDDED_SLOTS",
    "ENDPOINT_KINDS",
    "FOREIGN_ITEM",
    "INCOMPLETE_REASONS",
    "RAW_LOGPROBS",
    "REMOTE_MODEL_SPEC",
    "AbsentModel",
    "AnsweredCall",
    "AskModel",
    "ChatModel",
    "Completion",
    "CreateParams",
    "Model",
    "ModelCall",
    "TokenContinuingModel",
    "check_finite_logprobs",
    "check_headers",
    "describe_connection_error",
    "get_foreign_item",
    "has_weights",
    "is_provider_target",
    "list_secrets",
    "make_create_params",
    "make_response",
    "make_sampling_params",
    "make_usage",
    "normalize_base_url",
    "open_http_session",
    "open_model",
    "probe_endpoint",
    "pull_weights",
    "read_context_limit",
    "read_create_params",
    "read_models",
    "read_output",
    "read_tokens",
    "require_continuing",
    "resolve_model",
    "to_chat_tools",
    "weights_path",
]

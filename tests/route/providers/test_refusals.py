"""Refusals about capability, size and parameters, in the words of providers: other models are asked, and who said so is
remembered for what."""

import json

import pytest

from route.providers.base import Fault
from route.providers.errors import Refused, read_refusal, refusal

NEEDED = ("images", "audio", "files", "video", "tools", "parallel_tools", "json_schema", "logprobs", "n", "reasoning")
FIELDS = ("messages", "temperature", "max_tokens", "top_p", "logit_bias", "reasoning_effort", "response_format", "stop")
IMAGES, TOOLS, SCHEMA = Refused(("images",)), Refused(("tools",)), Refused(("json_schema",))

WORDINGS = [
    ("OpenAI", 400, "Invalid content type. image_url is only supported by certain models.", IMAGES),
    ("OpenAI", 400, "Image inputs are not supported by this model.", IMAGES),
    ("OpenAI", 400, "Unsupported parameter: 'tools' is not supported with this model.", TOOLS),
    (
        "OpenAI",
        400,
        "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
        Refused(("parallel_tools",)),
    ),
    (
        "OpenAI",
        400,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model. Learn more about "
        "supported models at the Structured Outputs guide.",
        SCHEMA,
    ),
    ("OpenAI", 403, "You are not allowed to request logprobs from this model", Refused(("logprobs",))),
    ("OpenAI", 400, "Unrecognized request argument supplied: reasoning_effort", Refused(("reasoning",))),
    (
        "OpenAI",
        400,
        "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is "
        "supported.",
        Refused(parameter="temperature"),
    ),
    (
        "OpenAI",
        400,
        "max_tokens is too large: 9000. This model supports at most 4096 completion tokens, whereas you provided 9000.",
        Refused(longest=4096),
    ),
    (
        "OpenAI",
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        Refused(window=8192),
    ),
    ("OpenAI", 400, "'n' above 1 is not supported with this model", Refused(("n",))),
    (
        "Azure",
        400,
        "response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later",
        SCHEMA,
    ),
    ("Anthropic", 400, "'claude-3-haiku-20240307' does not support PDF input.", Refused(("files",))),
    (
        "Anthropic",
        400,
        "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet-20241022",
        Refused(longest=8192),
    ),
    ("Anthropic", 400, "prompt is too long: 210000 tokens > 200000 maximum", Refused(window=200000)),
    ("Anthropic", 400, "adaptive thinking is not supported on this model", Refused(("reasoning",))),
    ("Anthropic", 400, "`temperature` is deprecated for this model.", Refused(parameter="temperature")),
    (
        "Bedrock",
        400,
        "This model doesn't support the image content block that you provided. Remove the image content block and try "
        "again.",
        IMAGES,
    ),
    ("Bedrock", 400, "This model doesn't support tool use.", TOOLS),
    ("Gemini", 400, "Image input modality is not enabled for models/gemma-3-1b-it", IMAGES),
    ("Gemini", 400, "Audio input modality is not enabled for models/gemma-3-27b-it", Refused(("audio",))),
    ("Gemini", 400, "Function calling is not enabled for models/gemma-3-27b-it", TOOLS),
    ("Gemini", 400, "JSON mode is not enabled for models/gemma-3-4b-it", SCHEMA),
    ("Gemini", 400, "Multiple candidates is not enabled for this model", Refused(("n",))),
    ("Gemini", 400, "Thinking is not enabled for models/gemini-2.0-flash", Refused(("reasoning",))),
    (
        "Gemini",
        400,
        "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
        Refused(window=1048576),
    ),
    ("Groq", 400, "messages[0].content must be a string", IMAGES),
    ("Groq", 400, "`tool calling` is not supported with this model", TOOLS),
    ("Groq", 400, "This model does not support response format `json_schema`.", SCHEMA),
    ("Groq", 400, "'n' : number must be at most 1", Refused(("n",))),
    (
        "Groq",
        400,
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
        Refused(longest=8192),
    ),
    (
        "DeepSeek",
        422,
        "Failed to deserialize the JSON body into the target type: messages[0]: unknown variant `image_url`, expected "
        "`text` at line 1 column 210",
        IMAGES,
    ),
    ("DeepSeek", 400, "deepseek-reasoner does not support Function Calling", TOOLS),
    ("DeepSeek", 400, "This response_format type is unavailable now", SCHEMA),
    (
        "DeepSeek",
        400,
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        Refused(longest=8192),
    ),
    ("Mistral", 400, "Function calling is not enabled for this model", TOOLS),
    ("Mistral", 400, "Image input is not enabled for this model", IMAGES),
    ("xAI", 400, "Model grok-4 does not support parameter reasoningEffort.", Refused(("reasoning",))),
    ("OpenRouter", 404, "No endpoints found that support image input", IMAGES),
    ("OpenRouter", 404, "No endpoints found that support tool use.", TOOLS),
    ("Perplexity", 400, "Tool calling is not supported for this model.", TOOLS),
    ("Ollama", 400, "registry.ollama.ai/library/llama3:latest does not support tools", TOOLS),
    ("Ollama", 500, "this model is missing data required for image input: mmproj", IMAGES),
    ("vLLM", 400, "facebook/opt-125m is not a multimodal model", IMAGES),
    ("vLLM", 400, "At most 0 image(s) may be provided in one request.", IMAGES),
    ("vLLM", 400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', TOOLS),
    (
        "llama.cpp",
        500,
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        IMAGES,
    ),
    ("llama.cpp", 500, "tools param requires --jinja flag", TOOLS),
    (
        "llama.cpp",
        400,
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        Refused(),
    ),
    (
        "TGI",
        422,
        "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
        Refused(window=4095),
    ),
    (
        "Together",
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000",
        Refused(window=4097),
    ),
    (
        "Cerebras",
        400,
        "Please reduce the length of the messages or completion. Current length is 10217 while limit is 8192",
        Refused(window=8192),
    ),
    ("Moonshot", 400, "Invalid request: Your request exceeded model token limit: 8192", Refused(window=8192)),
    ("DashScope", 400, "Range of input length should be [1, 6000]", Refused(window=6000)),
    ("LM Studio", 400, "Model does not support images. Please use a model that does.", IMAGES),
    # Those from here on, and those above of OpenAI (images, context length), Anthropic (prompt too long), Gemini (token
    # count), DeepSeek (image_url), OpenRouter, Ollama and llama.cpp, are what users report, word for word.
    (
        "DeepSeek",
        400,
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the "
        "messages, 8192 in the completion). Please reduce the length of the messages or completion.",
        Refused(window=131072),
    ),
    (
        "DeepSeek",
        422,
        "Failed to deserialize the JSON body into the target type: messages[2]: data did not match any variant of "
        "untagged enum ChatCompletionRequestContent at line 1 column 15700",
        IMAGES,
    ),
    (
        "DeepSeek",
        400,
        "Failed to deserialize the JSON body into the target type: messages[9]: invalid type: sequence, expected a "
        "string at line 1 column 45446",
        IMAGES,
    ),
    (
        "OpenAI",
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        Refused(parameter="max_tokens"),
    ),
    (
        "Gemini",
        400,
        "The input token count exceeds the maximum number of tokens allowed (1048576).",
        Refused(window=1048576),
    ),
    (
        "OpenRouter",
        404,
        'No endpoints found that support tool use. Try disabling "get_current_timestamp". To learn more about provider '
        "routing, visit: https://openrouter.ai/docs/guides/routing/provider-selection",
        TOOLS,
    ),
    (
        "OpenRouter",
        404,
        "No endpoints found that support the provided 'tool_choice' value. To learn more about provider routing, "
        "visit: https://openrouter.ai/docs/provider-routing",
        TOOLS,
    ),
    (
        "Groq",
        400,
        "`max_completion_tokens` must be less than or equal to `16384`, the maximum value for `max_completion_tokens` "
        "is less than the `context_window` for this model",
        Refused(longest=16384),
    ),
    ("Groq", 400, "max_tokens for `llama-3.1-8b-instant` must be less than or equal to 8000", Refused(longest=8000)),
    (
        "Bedrock",
        400,
        "This model doesn't support the image field for user messages. Remove image and try again.",
        IMAGES,
    ),
    ("Cloudflare", 400, "this model does not support image input (ref: 4f1c)", IMAGES),
    ("Ollama", 400, "registry.ollama.ai/library/dolphin-mistral:7b-v2.8-q6_K does not support tools", TOOLS),
    (
        "llama.cpp",
        400,
        "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
        Refused(window=4096),
    ),
    ("llama-cpp-python", 400, "Requested tokens (2285) exceed context window of 2048", Refused(window=2048)),
]


@pytest.mark.parametrize(("provider", "status", "words", "refused"), WORDINGS, ids=[row[2][:60] for row in WORDINGS])
def test_a_refusal_goes_on_to_the_next_model_and_says_what_it_refuses(
    provider: str, status: int, words: str, refused: Refused
) -> None:
    body = json.dumps({"error": {"message": words, "type": "invalid_request_error"}}).encode()
    error = refusal(provider.lower(), status, {}, body)
    is_size = refused.window is not None or "context size" in words
    assert error.fault is (Fault.CONTEXT_LENGTH if is_size else Fault.UNSUPPORTED)
    assert read_refusal(error.detail, NEEDED, FIELDS) == refused


def test_there_are_thirty_wordings_of_ten_providers() -> None:
    assert len(WORDINGS) >= 30
    assert len({provider for provider, *_ in WORDINGS}) >= 10


@pytest.mark.parametrize(
    ("status", "words", "fault"),
    [
        (400, "Could not process image", Fault.REQUEST),
        (400, "Invalid base64 image_url.", Fault.REQUEST),
        (400, "tool_call_id 'x' has no matching call", Fault.REQUEST),
        (403, "Your project does not have access to this model", Fault.CREDENTIALS),
        (500, "the server had an error", Fault.SERVER),
    ],
)
def test_a_mistake_of_the_request_is_no_lack_of_the_model(status: int, words: str, fault: Fault) -> None:
    assert refusal("host", status, {}, json.dumps({"error": {"message": words}}).encode()).fault is fault


def test_only_what_the_request_has_is_refused() -> None:
    """A message that speaks of images says nothing of them where the request has none."""
    assert read_refusal("this model does not support images", ("tools",), ()) == Refused()
    assert read_refusal("unsupported parameter: 'stop'", (), ("messages", "top_p")) == Refused()

"""OpenAI's Responses API in front of the router: pure translations from and to chat completions."""

from route.responses.request import HINTS, chat_request, input_items, messages_of
from route.responses.response import ResponseStream, answer_of, response_of

__all__ = ["HINTS", "ResponseStream", "answer_of", "chat_request", "input_items", "messages_of", "response_of"]

"""Anthropic's Messages API in front of the router: pure translations from and to OpenAI's chat completions."""

from route.messages.answer import error_of, message_of
from route.messages.events import MessageStream
from route.messages.request import chat_request

__all__ = ["MessageStream", "chat_request", "error_of", "message_of"]

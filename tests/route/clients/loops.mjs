// One agent loop of a JavaScript client: node loops.mjs CLIENT, with ROUTER and ROUTER_KEY in the environment. It prints
// the last text and the places that the tool was asked about, as JSON.
const url = process.env.ROUTER;
const apiKey = process.env.ROUTER_KEY;
const question = "What do the ponds look like?";
const system = "You watch birds. " + "Say where each of them stands. ".repeat(100);
const schema = { type: "object", properties: { place: { type: "string" } }, required: ["place"], additionalProperties: false };
const description = "Look at a place.";
const places = [];
const look = ({ place }) => {
  places.push(place);
  return `a heron at ${place}`;
};

async function withAi(model, { streamed = false, providerOptions = undefined } = {}) {
  const { generateText, streamText, jsonSchema, isStepCount, tool } = await import("ai");
  const options = {
    model,
    instructions: { role: "system", content: system, providerOptions },
    messages: [{ role: "user", content: question }],
    tools: { look: tool({ description, inputSchema: jsonSchema(schema), execute: look }) },
    stopWhen: isStepCount(9),
    maxRetries: 0,
  };
  if (!streamed) return (await generateText(options)).text;
  const stream = streamText({ ...options, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  return text;
}

async function withOpenai(client) {
  const tools = [{ type: "function", function: { name: "look", description, parameters: schema } }];
  const messages = [{ role: "system", content: system }, { role: "user", content: question }];
  for (;;) {
    const { message } = (await client.chat.completions.create({ model: "auto", messages, tools })).choices[0];
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: look(JSON.parse(call.function.arguments)) });
    }
  }
}

async function withResponses(client) {
  const tools = [{ type: "function", name: "look", description, parameters: schema, strict: true }];
  const input = [{ role: "user", content: question }];
  for (;;) {
    const include = ["reasoning.encrypted_content"];
    const request = { model: "auto", instructions: system, input, tools, store: false, include, prompt_cache_key: "birds" };
    const response = await client.responses.stream(request).finalResponse();
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) return response.output_text;
    input.push(...response.output);
    for (const call of calls) {
      input.push({ type: "function_call_output", call_id: call.call_id, output: look(JSON.parse(call.arguments)) });
    }
  }
}

async function withAnthropic(client) {
  const cache_control = { type: "ephemeral" };
  const tools = [{ name: "look", description, input_schema: schema, cache_control }];
  const messages = [{ role: "user", content: question }];
  for (;;) {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const marked = [{ type: "text", text: system, cache_control }];
    const request = { model: "auto", max_tokens: 2000, system: marked, messages, tools, thinking };
    const message = await client.messages.stream(request).finalMessage();
    const calls = message.content.filter((block) => block.type === "tool_use");
    if (!calls.length) return message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
    messages.push({ role: "assistant", content: message.content });
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: look(call.input) }));
    messages.push({ role: "user", content: results });
  }
}

const clients = {
  "ai-openai": async () => {
    const { createOpenAI } = await import("@ai-sdk/openai");
    return withAi(createOpenAI({ baseURL: url + "/v1", apiKey })("auto"));
  },
  "ai-openai-stream": async () => {
    const { createOpenAI } = await import("@ai-sdk/openai");
    return withAi(createOpenAI({ baseURL: url + "/v1", apiKey })("auto"), { streamed: true });
  },
  "ai-openai-chat": async () => {
    const { createOpenAI } = await import("@ai-sdk/openai");
    return withAi(createOpenAI({ baseURL: url + "/v1", apiKey }).chat("auto"));
  },
  "ai-openai-compatible": async () => {
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
    return withAi(createOpenAICompatible({ name: "router", baseURL: url + "/v1", apiKey })("auto"), { streamed: true });
  },
  "ai-anthropic": async () => {
    const { createAnthropic } = await import("@ai-sdk/anthropic");
    const providerOptions = { anthropic: { cacheControl: { type: "ephemeral" } } };
    return withAi(createAnthropic({ baseURL: url + "/v1", apiKey })("claude-opus-4-7"), { providerOptions });
  },
  "openai": async () => {
    const { default: OpenAI } = await import("openai");
    return withOpenai(new OpenAI({ baseURL: url + "/v1", apiKey, maxRetries: 0 }));
  },
  "openai-responses": async () => {
    const { default: OpenAI } = await import("openai");
    return withResponses(new OpenAI({ baseURL: url + "/v1", apiKey, maxRetries: 0 }));
  },
  "anthropic": async () => {
    const { default: Anthropic } = await import("@anthropic-ai/sdk");
    return withAnthropic(new Anthropic({ baseURL: url, apiKey, maxRetries: 0 }));
  },
};

const text = await clients[process.argv[2]]();
console.log(JSON.stringify({ text, places }));

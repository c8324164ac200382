// The `ai` SDK with its provider for compatible APIs: node vercel_ai.mjs BASE_URL MODEL, in the folder of its packages.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.cwd() + "/");
const { generateText, streamText } = await import(pathToFileURL(require.resolve("ai")));
const { createOpenAICompatible } = await import(pathToFileURL(require.resolve("@ai-sdk/openai-compatible")));

const [url, model] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "weir", baseURL: `${url}/v1`, includeUsage: true });
const common = { prompt: "Tell me of rivers.", maxOutputTokens: 12, temperature: 0, maxRetries: 0 };

async function generate() {
  const { text, usage } = await generateText({ model: provider(model), ...common });
  if (!text || !(usage.outputTokens <= 12)) throw new Error(JSON.stringify({ text, usage }));
  return text;
}

async function streamEqualsWhole() {
  const result = streamText({ model: provider(model), ...common });
  let streamed = "";
  for await (const part of result.textStream) streamed += part;
  const whole = await generate();
  if (streamed !== whole) throw new Error(`${streamed} != ${whole}`);
  if (!((await result.usage).outputTokens > 0)) throw new Error("no usage");
}

async function unknownModel() {
  try {
    await generateText({ model: provider("gpt-9"), ...common });
  } catch (error) {
    if (String(error.responseBody ?? error.message).includes("gpt-9") && error.statusCode === 404) return;
    throw error;
  }
  throw new Error("no error");
}

for (const [check, body] of Object.entries({ generate, stream_equals_whole: streamEqualsWhole, unknown_model: unknownModel })) {
  let line = { check, ok: true, note: "" };
  try {
    await body();
  } catch (error) {
    line = { check, ok: false, note: `${error.name}: ${error.message}`.slice(0, 300) };
  }
  console.log(JSON.stringify(line));
}

// Classifies a text with the exported graphs, pruned and dense, and shows which layer dropped which word.
import * as ort from "./vendor/ort.wasm.min.mjs";
import { Tokenizer } from "./vendor/tokenizers.min.mjs";

const ROUNDS = 15; // of each graph, in turn; the median is shown
const page = Object.fromEntries(["text", "go", "answer", "words", "legend", "times"].map((id) => [id, document.getElementById(id)]));

ort.env.wasm.wasmPaths = new URL("./vendor/", import.meta.url).href;
ort.env.wasm.numThreads = 1;

const json = async (file) => {
  const found = await fetch(file);
  if (!found.ok) throw new Error(`${file} is not there; run prepare.py first`);
  return found.json();
};

async function load() {
  const folder = "models/pruned";
  const [config, words, settings] = await Promise.all(
    ["config.json", "tokenizer.json", "tokenizer_config.json"].map((name) => json(`${folder}/${name}`)),
  );
  const sessions = {};
  for (const kind of ["dense", "pruned"]) sessions[kind] = await ort.InferenceSession.create(`models/${kind}/onnx/model.onnx`);
  return { config, tokenizer: new Tokenizer(words, settings), limit: settings.model_max_length, sessions };
}

function inputsOf(model, text) {
  const { ids, tokens } = model.tokenizer.encode(text);
  const size = Math.min(ids.length, model.limit);
  const row = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, size]);
  // What is cut is the text, not the token that ends it.
  const cut = (values) => (values.length > size ? [...values.slice(0, size - 1), values[values.length - 1]] : values);
  const all = {
    input_ids: row(cut(ids)),
    attention_mask: row(Array(size).fill(1)),
    token_type_ids: row(Array(size).fill(0)),
  };
  const names = model.sessions.pruned.inputNames;
  return { tokens: cut(tokens), inputs: Object.fromEntries(names.map((name) => [name, all[name]])) };
}

async function timed(model, inputs) {
  const times = { dense: [], pruned: [] };
  for (let round = 0; round <= ROUNDS; round++) {
    for (const kind of ["dense", "pruned"]) {
      const began = performance.now();
      await model.sessions[kind].run(inputs);
      if (round) times[kind].push(performance.now() - began); // the first warms up
    }
  }
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  return { dense: median(times.dense), pruned: median(times.pruned) };
}

const colour = (passed, layers) => (passed >= layers ? "#cdebd9" : `hsl(${10 + (30 * passed) / layers} 90% ${70 + (22 * passed) / layers}%)`);

function span(text, background) {
  const made = document.createElement("span");
  made.textContent = text;
  made.style.background = background;
  return made;
}

function show(model, { tokens, logits, passed, times }) {
  const powers = logits.map((value) => Math.exp(value - Math.max(...logits)));
  const best = logits.indexOf(Math.max(...logits));
  const share = powers[best] / powers.reduce((sum, value) => sum + value, 0);
  page.answer.textContent = `${model.config.id2label[best]}, ${(100 * share).toFixed(1)}%`;
  const layers = model.config.num_hidden_layers;
  page.words.replaceChildren(...tokens.map((token, i) => span(token, colour(passed[i], layers))));
  const seen = [...new Set(passed)].sort((a, b) => a - b);
  const name = (count) => (count >= layers ? "kept to the end" : `dropped in layer ${count + 1}`);
  page.legend.replaceChildren(...seen.map((count) => span(name(count), colour(count, layers))));
  page.times.replaceChildren(
    ...["dense", "pruned"].map((kind) => {
      const bar = document.createElement("div");
      bar.className = `bar ${kind}`;
      const [label, line, number] = ["b", "i", "span"].map((tag) => document.createElement(tag));
      label.textContent = kind;
      line.style.width = `${(60 * times[kind]) / Math.max(times.dense, times.pruned)}%`;
      number.textContent = `${times[kind].toFixed(1)} ms`;
      bar.append(label, line, number);
      return bar;
    }),
  );
}

async function classify(model, text) {
  const { tokens, inputs } = inputsOf(model, text);
  const [pruned, dense] = [await model.sessions.pruned.run(inputs), await model.sessions.dense.run(inputs)];
  const result = {
    tokens,
    logits: [...pruned.logits.data],
    dense_logits: [...dense.logits.data],
    passed: [...pruned.passed.data].map(Number),
    times: await timed(model, inputs),
  };
  show(model, result);
  return result;
}

async function main() {
  const asked = new URLSearchParams(location.search);
  try {
    const model = await load();
    page.text.value = asked.get("text") ?? page.text.value;
    const go = () => classify(model, page.text.value);
    page.go.onclick = go;
    page.go.textContent = "classify";
    page.go.disabled = false;
    const result = await go();
    if (asked.has("report")) await fetch("report", { method: "POST", body: JSON.stringify(result) });
  } catch (error) {
    page.answer.className = "error";
    page.answer.textContent = error.message;
    if (asked.has("report")) await fetch("report", { method: "POST", body: JSON.stringify({ error: String(error) }) });
  }
}

main();

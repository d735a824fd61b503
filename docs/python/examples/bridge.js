// Runs programs from Node.js: two that write numbers, and one that adds them up afterwards.
//
//     node bridge.js             # on the server in the default directory
//     node bridge.js --local     # on this machine

const { spawn } = require("node:child_process");
const { readFileSync } = require("node:fs");

const bridge = spawn(process.env.HQ_BINARY ?? "hq", ["bridge", ...process.argv.slice(2)], {
  stdio: ["pipe", "pipe", "inherit"],
});
const waiting = new Map();
let last = 0;
let received = Buffer.alloc(0);

// Asks a question. The bytes are the standard input of the programs.
function ask(question, bytes = Buffer.alloc(0)) {
  const id = ++last;
  const json = Buffer.from(JSON.stringify({ op: "ask", id, question }));
  const lengths = Buffer.alloc(8);
  lengths.writeUInt32LE(4 + json.length + bytes.length, 0);
  lengths.writeUInt32LE(json.length, 4);
  bridge.stdin.write(Buffer.concat([lengths, json, bytes]));
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}

function onMessage(message) {
  if (message.ev === "fatal") throw new Error(message.text);
  if (message.ev !== "answer") return;
  const { resolve, reject } = waiting.get(message.id);
  waiting.delete(message.id);
  message.error === undefined ? resolve(message.value) : reject(new Error(message.error));
}

bridge.stdout.on("data", (chunk) => {
  received = Buffer.concat([received, chunk]);
  while (received.length >= 8 && received.length >= 4 + received.readUInt32LE(0)) {
    const end = 4 + received.readUInt32LE(0);
    const json = received.subarray(8, 8 + received.readUInt32LE(4));
    received = received.subarray(end);
    onMessage(JSON.parse(json));
  }
});

async function main() {
  const program = (args, stdout) => ({ args, cwd: process.cwd(), stdout: { path: stdout } });
  const templates = [
    program(["seq", "10"], "first"),
    program(["cat"], "second"),
    program(["awk", "{ sum += $1 } END { print sum }", "first", "second"], "sum"),
  ];
  const input = Buffer.from("100\n");
  const tasks = [
    { id: 0, template: 0, deps: [] },
    { id: 1, template: 1, deps: [] },
    { id: 2, template: 2, deps: [0, 1] },
  ];
  const graph = { what: "graph", name: "sum", dir: process.cwd(), templates, stdin: [-1, input.length, -1], tasks };
  const job = await ask(graph, input);
  const counts = await ask({ what: "wait", jobs: [job] });
  console.log(`${counts[job].finished} of ${counts[job].total} programs finished`);
  for (const task of await ask({ what: "failed", job })) console.log(`program ${task.id} failed: ${task.error}`);
  console.log(`the sum is ${readFileSync("sum", "utf8").trim()}`);
  bridge.stdin.end();
}

main();

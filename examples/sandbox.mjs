// The host of `sandbox.rs`: gives a WebAssembly module that can open nothing the bytes of its
// connections and the time. `node sandbox.mjs MODULE.wasm HOST:PORT TOPIC GROUP RECORDS`
//
// The module reads its input in blocking calls, so it runs in a process of its own, under Node's
// WASI; this process has the sockets. It dials no address but the one it was given.
import { spawn } from 'node:child_process';
import net from 'node:net';
import { fileURLToPath } from 'node:url';

if (process.argv[2] === '--guest') {
  const { WASI } = await import('node:wasi');
  const { readFile } = await import('node:fs/promises');
  const args = process.argv.slice(3);
  const wasi = new WASI({ version: 'preview1', args, returnOnExit: true });
  const module = await WebAssembly.compile(await readFile(args[0]));
  process.exit(wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject())));
}

const [wasm, bootstrap, topic, group, records] = process.argv.slice(2);
if (!records) {
  console.error('usage: node sandbox.mjs MODULE.wasm HOST:PORT TOPIC GROUP RECORDS');
  process.exit(64);
}
const self = fileURLToPath(import.meta.url);
const guest = spawn(process.execPath, ['--no-warnings', self, '--guest', wasm, bootstrap, topic, group, records],
  { stdio: ['pipe', 'pipe', 'inherit'] });

const began = process.hrtime.bigint();
const sockets = new Map();
const waiting = []; // what has happened while the guest had the word
let asked = false;  // the guest has the word
let timer = null;
let count = 0;

function tell(kind, link, bytes = Buffer.alloc(0)) {
  // A message of the guest's size at most.
  for (let at = 0; at === 0 || at < bytes.length; at += 1 << 19) {
    waiting.push([kind, link, bytes.subarray(at, at + (1 << 19))]);
  }
  next();
}

function next() {
  if (asked || waiting.length === 0) return;
  clearTimeout(timer);
  asked = true;
  const [kind, link, bytes] = waiting.shift();
  const head = Buffer.alloc(21);
  head.writeUInt32BE(bytes.length + 17, 0);
  head.writeUInt8(kind, 4);
  head.writeBigUInt64BE(process.hrtime.bigint() - began, 5);
  head.writeBigUInt64BE(link, 13);
  guest.stdin.write(Buffer.concat([head, bytes]));
}

function open(link, address) {
  if (address !== bootstrap) return tell(3, link, Buffer.from(`${address} is outside the sandbox`));
  const at = address.lastIndexOf(':');
  const socket = net.connect({ host: address.slice(0, at), port: Number(address.slice(at + 1)), noDelay: true });
  sockets.set(link, socket);
  const live = () => sockets.get(link) === socket;
  socket.on('connect', () => live() && tell(1, link));
  socket.on('data', (bytes) => live() && tell(2, link, bytes));
  const gone = (why) => { if (live()) { sockets.delete(link); tell(3, link, Buffer.from(why)); } };
  socket.on('error', (e) => gone(e.message));
  socket.on('close', () => gone('the broker closed the connection'));
}

function heard(kind, number, bytes) {
  switch (kind) {
    case 0: return open(number, bytes.toString());
    case 1: return sockets.get(number)?.write(Buffer.from(bytes));
    case 2: sockets.get(number)?.destroy(); return sockets.delete(number);
    case 3: {
      asked = false;
      const wait = Number((number - (process.hrtime.bigint() - began)) / 1000000n);
      clearTimeout(timer);
      timer = setTimeout(() => { if (!asked && waiting.length === 0) tell(0, 0n); }, Math.min(Math.max(wait, 0) + 1, 3600000));
      return next();
    }
    case 4: count += 1; return;
    case 5: return console.error(bytes.toString());
    case 6: {
      for (const socket of sockets.values()) socket.destroy();
      console.log(`${count} records in the sandbox${bytes.length ? `: ${bytes}` : ''}`);
      return clearTimeout(timer);
    }
  }
}

let input = Buffer.alloc(0);
guest.stdout.on('data', (bytes) => {
  input = input.length ? Buffer.concat([input, bytes]) : bytes;
  while (input.length >= 4 && input.length >= input.readUInt32BE(0) + 4) {
    const end = input.readUInt32BE(0) + 4;
    heard(input.readUInt8(4), input.readBigUInt64BE(5), input.subarray(13, end));
    input = input.subarray(end);
  }
});
guest.on('exit', (code) => process.exit(code ?? 1));
tell(0, 0n);

// Runs a WASI program: `node run-wasi.mjs PROGRAM.wasm ARGS...`, with the current folder to read.
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const args = process.argv.slice(2);
const wasi = new WASI({
  version: 'preview1', args, env: process.env, preopens: { '/': '/' }, returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(args[0]));
process.exitCode = wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject()));

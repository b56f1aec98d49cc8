// Rows as lines of JSON, bytes in base64.
import { createInterface } from 'node:readline'

export const toBytes = text => text === null ? null : Buffer.from(text, 'base64')
export const toText = bytes => bytes ? bytes.toString('base64') : null

// Those of stdin; headers are pairs of name and bytes, `ms` their time.
export async function * given() {
  for await (const line of createInterface({ input: process.stdin })) {
    const { key, value, headers, ms } = JSON.parse(line)
    const pairs = headers.map(([name, bytes]) => [name, toBytes(bytes)])
    yield { key: toBytes(key), value: toBytes(value), headers: pairs, ms }
  }
}

export function print(key, value, headers, time) {
  const pairs = headers.map(([name, bytes]) => [name, toText(bytes)])
  console.log(JSON.stringify({ key: toText(key), value: toText(value), headers: pairs, ms: Number(time) }))
}

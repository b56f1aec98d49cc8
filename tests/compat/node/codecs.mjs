// kafkajs brings gzip; its users add the other codecs.
export async function addCodecs(require) {
  const { CompressionTypes, CompressionCodecs } = require('kafkajs')
  const zstd = require('@bokuweb/zstd-wasm')
  const of = ({ compress, decompress }) => () => ({
    compress: async encoder => Buffer.from(compress(encoder.buffer)),
    decompress: async buffer => Buffer.from(decompress(buffer)),
  })
  await zstd.init()
  CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
  CompressionCodecs[CompressionTypes.LZ4] = of(require('lz4js'))
  CompressionCodecs[CompressionTypes.ZSTD] = of(zstd)
}

import { defineConfig } from "vite";

// `npm run dev` shows the sources against a server that runs beside it.
const server = process.env.HOLDFAST_SERVER ?? "http://127.0.0.1:7717";

export default defineConfig({
  // The server writes its own root before these addresses: it may be mounted at any path.
  base: "./",
  build: {
    outDir: "../src/holdfast/server/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // A data: address for an icon would need a wider content security policy.
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 400,
  },
  server: { proxy: { "/v1": { target: server, changeOrigin: true } } },
});

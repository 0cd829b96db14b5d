// Loaded before everything else. Where the system's language is C or POSIX, Chromium says "en-US@posix", which Intl
// refuses; the charts' library asks Intl as soon as it is loaded, and the page would stay empty.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en", configurable: true });
}

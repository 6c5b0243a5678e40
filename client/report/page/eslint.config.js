import js from "@eslint/js";
import es from "eslint-plugin-es-x";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    rules: {
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-var": "error",
      "prefer-const": "error",
      eqeqeq: "error",
      curly: ["error", "multi-line"],
    },
  },
  // What the browsers that docs/guide/viewers.md names have.
  { ...es.configs["flat/restrict-to-es2022"], files: ["**/*.js"], ignores: ["**/browser/**", "**/tests/**", "**/eslint.config.js"] },
  { files: ["**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["**/browser/**", "**/tests/**", "**/eslint.config.js"], languageOptions: { globals: { ...globals.node, ...globals.browser } } },
];

import js from "@eslint/js";
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
  { files: ["*.js"], languageOptions: { globals: globals.browser } },
  { files: ["browser/**", "tests/**", "eslint.config.js"], languageOptions: { globals: { ...globals.node, ...globals.browser } } },
];

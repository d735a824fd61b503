// Rules for the pages of the web dashboard. Called from the root of the repository, by .ci/run.

import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["crates/server/web/**/*.js"],
    languageOptions: { ecmaVersion: "latest", sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      complexity: ["error", 20],
      "consistent-return": "error",
      eqeqeq: "error",
      "max-depth": ["error", 4],
      "max-lines": ["error", 420],
      "max-lines-per-function": ["error", 140],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-loop-func": "error",
      "no-new-func": "error",
      "no-param-reassign": ["error", { props: false }],
      "no-shadow": "error",
      "no-unused-vars": ["error", { args: "all", argsIgnorePattern: "^_" }],
      "no-use-before-define": ["error", { functions: false, classes: false, variables: false }],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      // Signed texts and terminal output are full of them.
      "no-control-regex": "off",
    },
  },
];

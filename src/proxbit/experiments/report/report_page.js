"use strict";
// Sorting by a click on a column's name, and hiding the rows that do not hold the words asked for.
(() => {
  const value = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;

  // Numbers before words, and what is empty last, whichever way the column is sorted.
  const compare = (a, b, way) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = Number(a), y = Number(b);
    if (!Number.isNaN(x) && !Number.isNaN(y)) return way * (x - y);
    return way * a.localeCompare(b, "en", { numeric: true });
  };

  const sort = (table, column) => {
    const head = table.tHead.rows[0].cells[column];
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => compare(value(a, column), value(b, column), way));
    body.append(...rows);
  };

  const filter = (table, text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const held = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => held.includes(word));
    }
  };

  for (const table of document.querySelectorAll("table")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sort(table, column));
    });
  }
  for (const input of document.querySelectorAll("label.filter input")) {
    const table = document.getElementById(input.dataset.table);
    input.addEventListener("input", () => filter(table, input.value));
  }
})();
